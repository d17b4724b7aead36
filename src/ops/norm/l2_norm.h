// Rows over their lengths, as models spell it out: x / max(length of x, `least`), along the last dimension.
#pragma once
#include <memory>

#include "ops/op.h"

namespace encore::ops {

// The attribute `least` is not negative.
std::unique_ptr<Op> make_l2_norm(const NodeInfo& node);

}  // namespace encore::ops
