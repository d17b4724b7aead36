// Groups of nodes that are better one: convolutions and what stands between them.
#pragma once
#include <vector>

#include "fuse/graph.h"

namespace encore::fuse {

struct RegionSettings {
  bool are_channels_last = false;  // onnxruntime has changed the layout already
};

inline constexpr const char* kRegion = "convolutions and what is between";  // it is

bool is_convolution(const NodeInfo& info);
// Tensor cores want channels last. Where there are groups of a channel each, the kernels are for either layout.
enum class Convolution { none, dense, without_tensor_cores, grouped };
Convolution convolution_kind(const NodeInfo& info);

// Lists of nodes, each in an order in which they can run. No path leaves a region and comes back to it.
std::vector<std::vector<int>> find_regions(const Graph& graph, const RegionSettings& settings);

}  // namespace encore::fuse
