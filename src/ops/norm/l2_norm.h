// Rows over their lengths, as models spell it out: x / max(length of x, `least`), along the last dimension.
#pragma once
#include <memory>

#include "ops/op.h"

namespace encore::ops {

// The attribute `least` is not negative.
std::unique_ptr<Op> make_l2_norm(const NodeInfo& node);

// Heads, read where the nodes before would have taken them from: the attribute `x` has these steps. Input 1, if it is
// there, is what heads are multiplied by, which is broadcast and has one number for each at most.
std::unique_ptr<Op> make_viewed_l2_norm(const NodeInfo& node);

}  // namespace encore::ops
