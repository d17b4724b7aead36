#include "device/cluster.h"

#include <algorithm>
#include <array>
#include <bit>

#include "device/cuda/built_for.h"
#include "device/cuda/capture.h"
#include "device/cuda/check.h"
#include "device/cuda/graph_state.h"
#include "device/device.h"
#include "device/graph.h"
#include "device/persistent.h"

namespace encore::device::cuda {

Blocks blocks_for(StreamRef stream, int64_t indices) {
  constexpr int kThreads = 256;
  const int64_t most = 32 * int64_t(multiprocessors(stream.device()));
  return {std::min((indices + kThreads - 1) / kThreads, most), kThreads};
}

void allow_dynamic(int device, const void* entry, int64_t dynamic_bytes, std::atomic<uint32_t>& allowed,
                   KernelName kernel) {
  constexpr int64_t kAlwaysThere = 48 * 1024;
  const int64_t most = shared_bytes(device);
  const auto refuse = [&](int64_t free) {
    throw Error(Code::invalid_input,
                text("a block cannot have ", dynamic_bytes, " bytes of dynamic shared memory: device ", device, " has ",
                     free, " of them for this kernel"),
                std::string(kernel));
  };
  if (dynamic_bytes < 0 || dynamic_bytes > most) [[unlikely]]
    refuse(most);
  const uint32_t bit = uint32_t(1) << device;
  static_assert(kMaxDevices <= 32);
  const bool known = allowed.load(std::memory_order_relaxed) & bit;
  if (known && dynamic_bytes <= most - kAlwaysThere) return;  // static memory is no more than what is always there
  const RelaxedCapture relaxed;                               // the kernel may have to be loaded first
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, entry), "cudaFuncGetAttributes");
  const int64_t free = most - int64_t(attributes.sharedSizeBytes);
  if (dynamic_bytes > free) refuse(free);
  if (known) return;
  check(cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, int(free)), "cudaFuncSetAttribute");
  allowed.fetch_or(bit, std::memory_order_relaxed);
}

namespace {
// Whether the device runs code that waits for earlier work by itself, which code for 9.0 and later can, as it can have
// clusters.
bool waits_by_itself(int device) {
  static AskedOnce waits;
  return waits(device, [&] { return built_for().used_on(capability(device)) >= 900; });
}

cudaLaunchAttribute clusters_of(int blocks) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = unsigned(blocks);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  return attribute;
}

void check_grid(const Blocks& grid, KernelName kernel) {
  constexpr int64_t kMostBlocks = 0x7fffffff;
  if (grid.blocks > kMostBlocks) [[unlikely]]
    throw Error(Code::invalid_input, text("a launch cannot have ", grid.blocks, " blocks"), std::string(kernel));
  if (grid.threads < 32 || grid.threads > 1024 || grid.threads % 32 != 0) [[unlikely]]
    throw Error(Code::invalid_input,
                text("a block cannot have ", grid.threads, " threads: it takes a multiple of 32, at most 1024"),
                std::string(kernel));
}

void launch(StreamRef stream, const void* entry, const Blocks& grid, int in_cluster, void** arguments,
            KernelName kernel) {
  check_grid(grid, kernel);
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(grid.blocks));
  config.blockDim = dim3(unsigned(grid.threads));
  config.dynamicSmemBytes = size_t(grid.dynamic_bytes);
  config.stream = static_cast<cudaStream_t>(stream.native());
  config.attrs = attributes;
  const bool captures = captures_under_way.load(std::memory_order_relaxed) != 0;
  if (!grid.late && waits_by_itself(stream.device()) && !(captures && bodies_open)) {
    cudaLaunchAttribute& may_start_early = attributes[config.numAttrs++];
    may_start_early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    may_start_early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (in_cluster > 1) attributes[config.numAttrs++] = clusters_of(in_cluster);
  const cudaError_t result = cudaLaunchKernelExC(&config, entry, arguments);
  if (result != cudaSuccess) [[unlikely]]
    raise(result, text("cudaLaunchKernelExC of ", std::string_view(kernel)));
  if (captures) [[unlikely]]
    note_new_nodes(stream, kernel);
}
}  // namespace

void launch(StreamRef stream, const void* entry, Blocks grid, void** arguments, KernelName kernel) {
  launch(stream, entry, grid, 1, arguments, kernel);
}
void set_kernel(const GraphExec& exec, KernelNode node, const void* entry, const Blocks& grid, void** arguments,
                KernelName kernel) {
  check_grid(grid, kernel);
  cudaKernelNodeParams params = {};
  params.func = const_cast<void*>(entry);
  params.gridDim = dim3(unsigned(grid.blocks));
  params.blockDim = dim3(unsigned(grid.threads));
  params.sharedMemBytes = unsigned(grid.dynamic_bytes);
  params.kernelParams = arguments;
  const cudaError_t result =
      cudaGraphExecKernelNodeSetParams(exec.state().exec, reinterpret_cast<cudaGraphNode_t>(node.id), &params);
  if (result != cudaSuccess) [[unlikely]]
    raise(result, text("cudaGraphExecKernelNodeSetParams of ", std::string_view(kernel)));
}
void launch(StreamRef stream, const void* entry, const Clusters& grid, int64_t dynamic_bytes, void** arguments,
            KernelName kernel) {
  if (grid.blocks < 1 || grid.blocks > kMostInCluster || !std::has_single_bit(unsigned(grid.blocks))) [[unlikely]]
    throw Error(
        Code::invalid_input,
        text("a cluster cannot have ", grid.blocks, " blocks: it takes a power of two, at most ", kMostInCluster),
        std::string(kernel));
  const int64_t clusters = std::min<int64_t>(grid.clusters, int64_t(1) << 40);  // too many, and no overflow
  launch(stream, entry, {clusters * grid.blocks, grid.threads, dynamic_bytes}, grid.blocks, arguments, kernel);
}

void launch_persistent(StreamRef stream, const void* entry, const Persistent& grid, void** arguments,
                       KernelName kernel) {
  check_grid({grid.blocks, grid.threads}, kernel);
  if (grid.blocks > multiprocessors(stream.device())) [[unlikely]]
    throw Error(Code::invalid_input,
                text(grid.blocks, " blocks cannot run at the same time: device ", stream.device(), " has ",
                     multiprocessors(stream.device()), " multiprocessors"),
                std::string(kernel));
  cudaLaunchAttribute together = {};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(grid.blocks));
  config.blockDim = dim3(unsigned(grid.threads));
  config.dynamicSmemBytes = size_t(grid.dynamic_bytes);
  config.stream = static_cast<cudaStream_t>(stream.native());
  config.attrs = &together;
  config.numAttrs = 1;
  const cudaError_t result = cudaLaunchKernelExC(&config, entry, arguments);
  if (result != cudaSuccess) [[unlikely]]
    raise(result, text("cudaLaunchKernelExC of ", std::string_view(kernel)));
  if (captures_under_way.load(std::memory_order_relaxed) != 0) [[unlikely]]
    note_new_nodes(stream, kernel);
}

int64_t bytes_to_spread(int device) { return waits_by_itself(device) ? shared_bytes(device) / 3 : 0; }

int most_in_cluster(int device, const void* entry, const Blocks& block, MostInCluster& known) {
  std::atomic<int8_t>& answer = known[size_t(device)];
  if (const int most = answer.load(std::memory_order_relaxed)) return most;
  int has_clusters = 0;
  check(cudaDeviceGetAttribute(&has_clusters, cudaDevAttrClusterLaunch, device), "cudaDeviceGetAttribute");
  int most = has_clusters && waits_by_itself(device) ? kMostInCluster : 1;
  if (most > 1) {
    const RelaxedCapture relaxed;  // the kernel may have to be loaded first
    for (int together = 0; most > 1; most /= 2) {
      cudaLaunchAttribute attribute = clusters_of(most);
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(unsigned(most));
      config.blockDim = dim3(unsigned(block.threads));
      config.dynamicSmemBytes = size_t(block.dynamic_bytes);
      config.attrs = &attribute;
      config.numAttrs = 1;
      check(cudaOccupancyMaxActiveClusters(&together, entry, &config), "cudaOccupancyMaxActiveClusters");
      if (together > 0) break;
    }
  }
  answer.store(int8_t(most), std::memory_order_relaxed);
  return most;
}

}  // namespace encore::device::cuda
