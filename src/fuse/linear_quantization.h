// QuantizeLinear and DequantizeLinear by one scale.
#pragma once
#include <optional>

#include "fuse/match.h"
#include "ops/elementwise/expression.h"

namespace encore::fuse {

// What the step computes, if it is one of them, and the scale and the zero point are known.
std::optional<ops::ScalarCall> linear_call(const Match& match, int step);

}  // namespace encore::fuse
