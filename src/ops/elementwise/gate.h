// x * sigmoid(x) * y, which models say in three operators; fusion makes it of them.
#pragma once
#include <memory>

#include "ops/op.h"

namespace encore::ops {

// Of inputs x and y under NumPy's broadcasting.
std::unique_ptr<Op> make_gate(const NodeInfo& node);

// Of one input, whose last dimension has columns of x and of y in turns, so many of each.
inline constexpr int kGateColumns = 8;
std::unique_ptr<Op> make_gate_of_both(const NodeInfo& node);
// The same: `count` values of such columns, which begin at a multiple of 16 bytes.
void gate_of_both(StreamRef stream, Type type, const void* both, void* out, int64_t count);

}  // namespace encore::ops
