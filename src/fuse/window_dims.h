// What a window that slides over a tensor leaves of its dimensions.
#pragma once
#include "fuse/shape_symbols.h"

namespace encore::fuse {

// Of a convolution by weights of these dimensions, or a pool; unknown ones are -1. Nothing if the node is neither.
std::optional<Dims> window_dims(const NodeInfo& node, const Dims& x, const std::optional<Dims>& weights);

}  // namespace encore::fuse
