// x * sigmoid(x) * y, which models say in three operators; fusion makes it of them.
#pragma once
#include <memory>

#include "device/gemv.h"
#include "ops/op.h"

namespace encore::ops {

// Of inputs x and y under NumPy's broadcasting.
std::unique_ptr<Op> make_gate(const NodeInfo& node);

// An attribute of products, which fusion sets and no model may: their columns are of x and of y in turns, so many of
// each, and they make x * sigmoid(x) * y of both.
inline constexpr const char* kGated = "gated";
using device::kGateColumns;
// `count` values of such columns, which begin at a multiple of 16 bytes.
void gate_of_both(StreamRef stream, Type type, const void* both, void* out, int64_t count);

}  // namespace encore::ops
