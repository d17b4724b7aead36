// Where each sequence's last key is, which models count in a mask.
#pragma once
#include <memory>

#include "ops/op.h"

namespace encore::ops {

// Of rows of int64 the sums, less so much (an attribute), as int32; both wrap around.
inline constexpr const char* kLess = "less";
std::unique_ptr<Op> make_last_keys(const NodeInfo& node);

}  // namespace encore::ops
