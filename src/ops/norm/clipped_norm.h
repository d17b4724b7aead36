// Rows that are clipped, by bounds which depend on whether something is so on the device, and normalised.
#pragma once
#include <memory>

#include "ops/op.h"

namespace encore::ops {

// Inputs: rows of float16, their scale and bias, which may be float, and a bool which says whether the first two of
// kBounds hold, else the last two. Without it that is asked of the rows: they do if any value is infinite. The bias may
// be absent. Output 1, if it is wanted, is what the rows are once they are clipped. Attributes: kCentred, epsilon and
// kBounds, each time the lower one first.
std::unique_ptr<Op> make_clipped_norm(const NodeInfo& node);

inline constexpr const char* kBounds = "bounds";

}  // namespace encore::ops
