#include "device/cuda/graph_fills.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "device/cuda/check.h"
#include "device/cuda/graph_edit.h"

namespace encore::device::cuda {
namespace {

constexpr int kThreads = 256, kWide = sizeof(uint4);

// `pattern` is what any four bytes at an address that four divides become. Wide ones are what is between `head` and the
// last whole pack.
__global__ void fill_bytes(unsigned char* to, uint32_t pattern, size_t head, size_t packs, size_t bytes) {
  const size_t first = size_t(blockIdx.x) * kThreads + threadIdx.x, step = size_t(gridDim.x) * kThreads;
  auto* const wide = reinterpret_cast<uint4*>(to + head);
  for (size_t i = first; i < packs; i += step) wide[i] = make_uint4(pattern, pattern, pattern, pattern);
  const auto byte = [&](size_t i) {
    to[i] = static_cast<unsigned char>(pattern >> (reinterpret_cast<uintptr_t>(to + i) % 4 * 8));
  };
  for (size_t i = first; i < head; i += step) byte(i);
  for (size_t i = head + packs * kWide + first; i < bytes; i += step) byte(i);
}

cudaGraphNode_t add_kernel(cudaGraph_t graph, const std::vector<cudaGraphNode_t>& after,
                           const cudaMemsetParams& params) {
  auto* to = static_cast<unsigned char*>(params.dst);
  uint32_t pattern = params.value;
  if (params.elementSize == 1) pattern = (pattern & 0xff) * 0x01010101u;
  if (params.elementSize == 2) pattern = (pattern & 0xffff) * 0x00010001u;
  size_t bytes = params.width * params.elementSize;
  size_t head = std::min<size_t>((kWide - reinterpret_cast<uintptr_t>(to) % kWide) % kWide, bytes);
  size_t packs = (bytes - head) / kWide;
  void* arguments[] = {&to, &pattern, &head, &packs, &bytes};
  constexpr size_t kMostBlocks = 1024;
  const size_t work = std::max<size_t>(packs, kWide);
  cudaKernelNodeParams kernel = {};
  kernel.func = reinterpret_cast<void*>(&fill_bytes);
  kernel.gridDim = dim3(unsigned(std::min((work + kThreads - 1) / kThreads, kMostBlocks)));
  kernel.blockDim = dim3(kThreads);
  kernel.kernelParams = arguments;
  cudaGraphNode_t made = nullptr;
  check(cudaGraphAddKernelNode(&made, graph, after.data(), after.size(), &kernel), "cudaGraphAddKernelNode");
  return made;
}

}  // namespace

void fill_by_kernels(Graph::State& state) {
  const RelaxedCapture relaxed;  // the kernel may have to be loaded first
  for (cudaGraphNode_t node : nodes_of(state.graph)) {
    if (type_of(node) != cudaGraphNodeTypeMemset) continue;
    if (const auto note = state.notes.find(node); note != state.notes.end() && note->second.needless) {
      remove(state, node);
      continue;
    }
    cudaMemsetParams params;
    check(cudaGraphMemsetNodeGetParams(node, &params), "cudaGraphMemsetNodeGetParams");
    if (params.height > 1 || params.width == 0) continue;
    replace(state, node, add_kernel(state.graph, dependencies_of(node), params), true);
  }
}

}  // namespace encore::device::cuda
