#include "device/graph.h"

#include <cuda.h>
#include <cxxabi.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "device/cuda/check.h"
#include "device/cuda/driver.h"
#include "device/cuda/graph_edit.h"

namespace encore::device {

using cuda::check;
using cuda::driver_function;
using cuda::kind_of;
using cuda::nodes_of;
using cuda::report;

namespace {

cudaStream_t of(StreamRef stream) { return static_cast<cudaStream_t>(stream.native()); }

// The name of any kernel, of libraries too: these launch functions that our runtime does not know, but the driver does.
std::string name_of_kernel(cudaGraphNode_t node) {
  static const auto get_params =
      driver_function<CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v2*)>("cuGraphKernelNodeGetParams", 12000);
  static const auto function_name = driver_function<decltype(&cuFuncGetName)>("cuFuncGetName", 12030);
  static const auto kernel_name = driver_function<decltype(&cuKernelGetName)>("cuKernelGetName", 12030);
  CUDA_KERNEL_NODE_PARAMS_v2 params = {};
  const char* name = nullptr;
  if (!get_params || get_params(node, &params) != CUDA_SUCCESS) return {};
  if (params.func) {
    if (!function_name || function_name(&name, params.func) != CUDA_SUCCESS) return {};
  } else if (params.kern) {
    if (!kernel_name || kernel_name(&name, params.kern) != CUDA_SUCCESS) return {};
  }
  if (!name) return {};
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                          &std::free);
  return status == 0 ? plain.get() : name;
}

}  // namespace

Graph::State::~State() { report(cudaGraphDestroy(graph), "cudaGraphDestroy"); }

Graph::Graph(std::shared_ptr<State> state) : state_(std::move(state)) {}
Graph::Graph() = default;
Graph::~Graph() = default;
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;

size_t Graph::size() const {
  size_t count = 0;
  if (state_) check(cudaGraphGetNodes(state_->graph, nullptr, &count), "cudaGraphGetNodes");
  return count;
}

std::vector<GraphNode> Graph::nodes() const {
  if (!state_) return {};
  std::vector<cudaGraphNode_t> nodes = nodes_of(state_->graph);
  const auto note_of = [&](cudaGraphNode_t node) {
    const auto found = state_->notes.find(node);
    return found == state_->notes.end() ? cuda::Note{"", {}, INT_MAX} : found->second;
  };
  std::ranges::stable_sort(nodes, {}, [&](cudaGraphNode_t node) { return note_of(node).order; });
  std::vector<GraphNode> listed;
  listed.reserve(nodes.size());
  for (cudaGraphNode_t node : nodes) {
    const cuda::Note note = note_of(node);
    const NodeKind kind = note.fills ? NodeKind::fill : kind_of(node);
    std::string name(note.kernel);
    if (kind == NodeKind::kernel && name.empty()) name = name_of_kernel(node);
    listed.push_back({kind, std::move(name), note.label});
  }
  return listed;
}

GraphExec Graph::instantiate() const {
  if (!state_) fail(Code::capture_failed, "there is no graph to instantiate");
  // What a launch allocates and does not free must not keep the next launch from running.
  const bool allocates = std::ranges::any_of(nodes_of(state_->graph),
                                             [](cudaGraphNode_t node) { return kind_of(node) == NodeKind::allocate; });
  cudaGraphExec_t exec = nullptr;
  const cudaError_t result =
      cudaGraphInstantiateWithFlags(&exec, state_->graph, allocates ? cudaGraphInstantiateFlagAutoFreeOnLaunch : 0);
  check(result, "cudaGraphInstantiateWithFlags");
  auto state = std::make_unique<GraphExec::State>(exec);
  if (!state_->exchanges.empty()) state->exchanges.await(state_->exchanges, state_);
  return GraphExec(std::move(state));
}

// A launch under way still runs to its end. Without the scope this would invalidate a capture of the same thread.
GraphExec::State::~State() {
  const RelaxedCapture relaxed;
  report(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
}

GraphExec::GraphExec(std::unique_ptr<State> state) : state_(std::move(state)) {}
GraphExec::GraphExec() = default;
GraphExec::~GraphExec() = default;
GraphExec::GraphExec(GraphExec&&) noexcept = default;
GraphExec& GraphExec::operator=(GraphExec&&) noexcept = default;

void GraphExec::launch(StreamRef stream) const {
  // CUDA would record a child graph.
  if (stream.capture_status() != CaptureStatus::none) [[unlikely]]
    cuda::forbid(stream, "launching a graph", "cudaGraphLaunch");
  const auto launch = [&] { check(cudaGraphLaunch(state_->exec, of(stream)), "cudaGraphLaunch"); };
  if (state_->exchanges.are_awaited()) [[unlikely]]
    return state_->exchanges.launch(*this, launch);
  launch();
}

void GraphExec::upload(StreamRef stream) const {
  if (stream.capture_status() != CaptureStatus::none) cuda::forbid(stream, "uploading a graph", "cudaGraphUpload");
  check(cudaGraphUpload(state_->exec, of(stream)), "cudaGraphUpload");
}

}  // namespace encore::device
