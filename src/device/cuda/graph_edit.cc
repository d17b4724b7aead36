#include "device/cuda/graph_edit.h"

#include <climits>

#include "device/cuda/check.h"
#include "device/cuda/edges.h"

namespace encore::device::cuda {

namespace {

// Nodes with edges, which copies and fills have plain ones of.
template <class Get>
std::vector<cudaGraphNode_t> listed(const Get& get, const char* call) {
  size_t count = 0;
  check(get(nullptr, nullptr, &count), call);
  std::vector<cudaGraphNode_t> nodes(count);
  std::vector<cudaGraphEdgeData> edges(count);
  if (count) check(get(nodes.data(), edges.data(), &count), call);
  return nodes;
}

}  // namespace

std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph) {
  size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
  std::vector<cudaGraphNode_t> nodes(count);
  if (count) check(cudaGraphGetNodes(graph, nodes.data(), &count), "cudaGraphGetNodes");
  return nodes;
}

cudaGraphNodeType type_of(cudaGraphNode_t node) {
  cudaGraphNodeType type;
  check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
  return type;
}

NodeKind kind_of(cudaGraphNode_t node) {
  switch (type_of(node)) {
    case cudaGraphNodeTypeKernel: return NodeKind::kernel;
    case cudaGraphNodeTypeMemcpy: return NodeKind::copy;
    case cudaGraphNodeTypeMemset: return NodeKind::fill;
    case cudaGraphNodeTypeMemAlloc: return NodeKind::allocate;
    case cudaGraphNodeTypeMemFree: return NodeKind::free;
    case cudaGraphNodeTypeHost: return NodeKind::host;
    case cudaGraphNodeTypeWaitEvent:
    case cudaGraphNodeTypeEventRecord:
    case cudaGraphNodeTypeExtSemaphoreSignal:
    case cudaGraphNodeTypeExtSemaphoreWait: return NodeKind::event;
    case cudaGraphNodeTypeGraph:
    case cudaGraphNodeTypeConditional: return NodeKind::graph;
    default: return NodeKind::empty;
  }
}

std::vector<cudaGraphNode_t> dependencies_of(cudaGraphNode_t node) {
  return listed([&](auto... to) { return get_dependencies(node, to...); }, "cudaGraphNodeGetDependencies");
}

std::vector<cudaGraphNode_t> dependents_of(cudaGraphNode_t node) {
  return listed([&](auto... to) { return get_dependents(node, to...); }, "cudaGraphNodeGetDependentNodes");
}

void remove(Graph::State& state, cudaGraphNode_t node) {
  const auto before = dependencies_of(node), behind = dependents_of(node);
  for (const cudaGraphNode_t& from : before)
    for (const cudaGraphNode_t& to : behind)
      check(add_dependencies(state.graph, &from, &to, nullptr, 1), "cudaGraphAddDependencies");
  state.notes.erase(node);
  check(cudaGraphDestroyNode(node), "cudaGraphDestroyNode");
}

void replace(Graph::State& state, cudaGraphNode_t node, cudaGraphNode_t made, bool fills) {
  for (const cudaGraphNode_t& after : dependents_of(node))
    check(add_dependencies(state.graph, &made, &after, nullptr, 1), "cudaGraphAddDependencies");
  const auto note = state.notes.find(node);
  Note kept = note == state.notes.end() ? Note{"", {}, INT_MAX} : note->second;
  if (note != state.notes.end()) state.notes.erase(note);
  kept.fills = fills;
  state.notes[made] = kept;
  check(cudaGraphDestroyNode(node), "cudaGraphDestroyNode");
}

}  // namespace encore::device::cuda
