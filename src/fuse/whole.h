// All nodes of a graph as one: of a region, or of a whole model. onnxruntime captures no graph that copies between host
// and device, and so no model that computes with its own shapes on the device; one node has these numbers on the host
// and passes them to kernels.
#pragma once
#include <set>
#include <string>

#include "fuse/groups.h"

namespace encore::fuse {

// Makes one plan of all nodes, with its groups as parts. What makes a value of `on_host` computes on the host.
Plan plan_of_whole(Graph& graph, std::vector<int> inputs, std::vector<int> outputs,
                   const std::set<std::string>& on_host, const RegionSettings& settings);

}  // namespace encore::fuse
