// All nodes of a graph as one: of a region, or of a whole model. onnxruntime captures no graph that copies between host
// and device, and so no model that computes with its own shapes on the device; one node has these numbers on the host
// and passes them to kernels.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "fuse/padded_run.h"
#include "fuse/plan.h"

namespace encore::fuse {

// One plan of all nodes. What makes a value of `on_host` computes on the host.
// It has further inputs behind its own: those that `paddings` need.
Plan plan_of_whole(Graph graph, std::vector<int> inputs, std::vector<int> outputs, const std::set<std::string>& on_host,
                   const std::vector<Padding>& paddings, const Compute& compute, const Watch& watch);

}  // namespace encore::fuse
