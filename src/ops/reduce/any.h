// Whether any element is infinite, or not a number, as models ask before they clip what halves may not hold.
#pragma once
#include <memory>

#include "ops/op.h"
#include "ops/reduce/odd.h"

namespace encore::ops {

// Floats of any kind. Of few it is one launch.
void find_any(StreamRef stream, const Tensor& x, const Odd& odd, bool* y);

// Attributes: IsInf's, kOfNan if it is IsNaN, and keepdims. All dimensions are reduced.
std::unique_ptr<Op> make_any(const NodeInfo& node);

inline constexpr const char* kOfNan = "nan";

}  // namespace encore::ops
