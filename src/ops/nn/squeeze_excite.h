// Squeeze and excite: x times a gate of each channel, which two small products make of the channels' means. Fusion
// makes it of the steps that models say it in.
#pragma once
#include <memory>

#include "ops/op.h"

namespace encore::ops {

// Most numbers to which channels are squeezed.
inline constexpr int kMostSqueezed = 1024;
// Inputs: pictures [n, .., channels], weights [squeezed, channels] and a bias of the squeeze, the same of the
// excitation, and floats by which the gated channels are multiplied, and which are added then. There may be no biases,
// nor these. Activations are as FusedConv has them: `squeeze_activation`, `gate_activation` and, in the end,
// `activation`.
std::unique_ptr<Op> make_squeeze_excite(const NodeInfo& node);

}  // namespace encore::ops
