#include "device/cuda/green_context.h"

#include <cuda.h>

#include <array>
#include <mutex>
#include <vector>

#include "device/cuda/check.h"
#include "device/cuda/driver.h"
#include "device/cuda/graph_edit.h"
#include "device/device.h"

namespace encore::device::cuda {

namespace {

auto create_stream() { return driver_function<decltype(&cuGreenCtxStreamCreate)>("cuGreenCtxStreamCreate", 12050); }

// Never destroyed: streams may go when the library's statics have gone.
CUgreenCtx make_context(int device) {
  const auto resource_of = driver_function<decltype(&cuDeviceGetDevResource)>("cuDeviceGetDevResource", 12040);
  const auto describe = driver_function<decltype(&cuDevResourceGenerateDesc)>("cuDevResourceGenerateDesc", 12040);
  const auto create = driver_function<decltype(&cuGreenCtxCreate)>("cuGreenCtxCreate", 12040);
  if (!resource_of || !describe || !create || !create_stream()) return nullptr;
  CUdevResource all;
  CUdevResourceDesc description;
  CUgreenCtx made = nullptr;
  const bool works = resource_of(device, &all, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS &&
                     describe(&description, &all, 1) == CUDA_SUCCESS &&
                     create(&made, description, device, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS;
  return works ? made : nullptr;
}

CUgreenCtx context_of(int device) {
  struct Known {
    std::once_flag once;
    CUgreenCtx context = nullptr;
  };
  static std::array<Known, kMaxDevices> known;
  Known& it = known[size_t(device)];
  std::call_once(it.once, [&] { it.context = make_context(device); });
  return it.context;
}

}  // namespace

cudaStream_t make_green_stream(int device) {
  const CUgreenCtx context = context_of(device);
  CUstream made = nullptr;
  if (context) check(cudaError_t(create_stream()(&made, context, CU_STREAM_NON_BLOCKING, 0)), "cuGreenCtxStreamCreate");
  return made;
}

bool has_green_streams(int device) { return context_of(device); }

bool is_green(cudaStream_t stream) {
  static const auto context_of = driver_function<decltype(&cuStreamGetGreenCtx)>("cuStreamGetGreenCtx", 12040);
  CUgreenCtx context = nullptr;
  return context_of && context_of(stream, &context) == CUDA_SUCCESS && context;
}

void leave_green_context(Graph::State& state) {
  CUcontext primary = nullptr;
  static const auto current = driver_function<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent", 4000);
  check(cudaError_t(current(&primary)), "cuCtxGetCurrent");
  for (cudaGraphNode_t node : nodes_of(state.graph)) {
    if (type_of(node) == cudaGraphNodeTypeKernel) {
      using Get = CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v2*);
      using Set = CUresult (*)(CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v2*);
      static const auto get = driver_function<Get>("cuGraphKernelNodeGetParams", 12000);
      static const auto set = driver_function<Set>("cuGraphKernelNodeSetParams", 12000);
      CUDA_KERNEL_NODE_PARAMS_v2 params = {};
      check(cudaError_t(get(node, &params)), "cuGraphKernelNodeGetParams");
      params.ctx = primary;
      check(cudaError_t(set(node, &params)), "cuGraphKernelNodeSetParams");
    } else if (type_of(node) == cudaGraphNodeTypeMemcpy) {
      const std::vector<cudaGraphNode_t> after = dependencies_of(node);
      cudaMemcpy3DParms params = {};
      cudaGraphNode_t made = nullptr;
      check(cudaGraphMemcpyNodeGetParams(node, &params), "cudaGraphMemcpyNodeGetParams");
      check(cudaGraphAddMemcpyNode(&made, state.graph, after.data(), after.size(), &params), "cudaGraphAddMemcpyNode");
      replace(state, node, made);
    }
  }
}

}  // namespace encore::device::cuda
