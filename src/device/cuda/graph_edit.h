// Nodes of a captured graph, and others in their place.
#pragma once
#include <vector>

#include "device/cuda/graph_state.h"

namespace encore::device::cuda {

std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph);
cudaGraphNodeType type_of(cudaGraphNode_t node);
NodeKind kind_of(cudaGraphNode_t node);
std::vector<cudaGraphNode_t> dependencies_of(cudaGraphNode_t node);
std::vector<cudaGraphNode_t> dependents_of(cudaGraphNode_t node);
// What waited for the node waits for what that waited for.
void remove(Graph::State& state, cudaGraphNode_t node);
// `made`, which has the same dependencies, is from now on what others wait for, and `node` is gone.
void replace(Graph::State& state, cudaGraphNode_t node, cudaGraphNode_t made, bool fills = false);

}  // namespace encore::device::cuda
