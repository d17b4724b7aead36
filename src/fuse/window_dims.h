// What a window that slides over a tensor leaves of its dimensions.
#pragma once
#include "fuse/shape_symbols.h"
#include "ops/nn/window.h"

namespace encore::fuse {

// Of a convolution by weights of these dimensions, or a pool; unknown ones are -1. Nothing if the node is neither.
std::optional<Dims> window_dims(const NodeInfo& node, const Dims& x, const std::optional<Dims>& weights);

// What the node slides over x, channels first, whose symbols are large enough for any window. Nothing where a run will
// refuse it.
std::optional<ops::Window> slid(const NodeInfo& node, const Dims& x, std::span<const int64_t> kernel);

}  // namespace encore::fuse
