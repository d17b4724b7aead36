// Recurrent layers on top of one another as one step, which only fusion makes.
//   inputs: X, then W, R, B, lengths (none), initial_h, initial_c, P of the first, then W, R, B, initial_h, initial_c,
//   P of each above it outputs: Y of the last, then Y_h and Y_c of each
#pragma once
#include <memory>

#include "ops/op.h"

namespace encore::ops {

inline constexpr const char* kLayers = "layers";
inline constexpr int kFirstLayerInputs = 8, kMoreLayerInputs = 6, kMostStacked = 4;

std::unique_ptr<Op> make_stacked_recurrence(const NodeInfo& node);

}  // namespace encore::ops
