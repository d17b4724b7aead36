// A Concat of which fusion has found that some pieces are parts of wider tensors.
#pragma once
#include <memory>

#include "ops/op.h"

namespace encore::ops {

// Attributes: axis, kBegins and kEnds, a number for each input; an end of -1 says that all of it is joined.
std::unique_ptr<Op> make_joined_cuts(const NodeInfo& node);

inline constexpr const char* kBegins = "begins";
inline constexpr const char* kEnds = "ends";

}  // namespace encore::ops
