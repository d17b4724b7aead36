// x * sigmoid(x) * y, which models say in three operators; fusion makes it of them.
#pragma once
#include <memory>

#include "ops/op.h"

namespace encore::ops {

// Of inputs x and y under NumPy's broadcasting.
std::unique_ptr<Op> make_gate(const NodeInfo& node);

}  // namespace encore::ops
