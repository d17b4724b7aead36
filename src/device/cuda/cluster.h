// Clusters on CUDA: of the architecture 9.0 and later; before it of one block.
#pragma once
#include <array>

#include "device/cluster.h"
#include "device/device.h"

namespace encore::device {

template <class Shared>
class Cluster {
 public:
  __device__ __forceinline__ explicit Cluster(const Shared& own) : own_(&own) {}
#if __CUDA_ARCH__ >= 900
  __device__ __forceinline__ int size() const {
    int size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
  }
  __device__ __forceinline__ int rank() const {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
  }
  __device__ __forceinline__ const Shared& shared(int rank) const {
    const Shared* theirs;
    asm("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"(own_), "r"(rank));
    return *theirs;
  }
#else
  __device__ __forceinline__ int size() const { return 1; }
  __device__ __forceinline__ int rank() const { return 0; }
  __device__ __forceinline__ const Shared& shared(int) const { return *own_; }
#endif

 private:
  const Shared* own_;
};

namespace cuda {
__device__ __forceinline__ bool is_cluster() {
#if __CUDA_ARCH__ >= 900
  int blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks > 1;
#else
  return false;
#endif
}

// Others see what is in shared memory by then. What is in other memory is nobody else's: the barrier's own ordering
// would wait for all of it, behind what other blocks read.
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "fence.release.sync_restrict::shared::cta.cluster;\n barrier.cluster.arrive.relaxed.aligned;\n "
      "barrier.cluster.wait.aligned;" ::
          : "memory");
#endif
}

// The same, of threads that tell one another nothing by it: they need not wait for what they wrote.
__device__ __forceinline__ void leave_with_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

template <class Shared, class Body>
__global__ void __launch_bounds__(max_threads<Body>()) cluster_entry(const __grid_constant__ Body body) {
  __shared__ alignas(16) alignas(Shared) unsigned char shared[sizeof(Shared)];
  __shared__ alignas(16) unsigned char lanes[kLanesBytes];
  extern __shared__ __align__(16) unsigned char dynamic[];
  static_assert(sizeof(shared) + sizeof(lanes) <= 48 * 1024, "Shared is too large for a block");
  Shared& typed = *reinterpret_cast<Shared*>(shared);
  Block<Shared> block(typed, lanes, dynamic);
  let_the_next_begin();
  if constexpr (!begins_early<Body>()) wait_for_earlier_work();
  body(block, static_cast<const Shared&>(typed));
  const bool together = is_cluster();
  if (together) wait_for_cluster();
  body.join(block, static_cast<const Shared&>(typed), Cluster<Shared>(typed));
  if (together) leave_with_cluster();  // the others may still read what is shared here
}

// Asks the driver, once for each kernel and device, of which `known` keeps the answers.
using MostInCluster = std::array<std::atomic<int8_t>, kMaxDevices>;
int most_in_cluster(int device, const void* entry, const Blocks& block, MostInCluster& known);
void launch(StreamRef stream, const void* entry, const Clusters& grid, int64_t dynamic_bytes, void** arguments,
            KernelName kernel);
template <class Shared, class Body>
inline MostInCluster known_most_in_cluster;
// What a block that spreads asks for.
int64_t bytes_to_spread(int device);
template <class Shared, class Body>
int64_t dynamic_bytes_on(int device, const void* entry) {
  static_assert(!spreads<Body>() || dynamic_bytes<Body>() == 0);
  const int64_t bytes = spreads<Body>() ? bytes_to_spread(device) : dynamic_bytes<Body>();
  if constexpr (spreads<Body>() || dynamic_bytes<Body>() > 0)
    allow_dynamic(device, entry, bytes, allowed_dynamic<Shared, Body>, kernel_name<Body>());
  return bytes;
}
}  // namespace cuda

// How many blocks, with as many threads as they may have, a cluster can have: a power of two, 1 where there are no
// clusters; 0 where a block finds no shared memory.
template <class Shared, class Body>
int most_in_cluster(int device) {
  constexpr int64_t kBytes = sizeof(Shared) + kLanesBytes + dynamic_bytes<Body>();
  if (dynamic_bytes<Body>() > 0 && kBytes > shared_bytes(device)) return 0;
  const void* const entry = reinterpret_cast<const void*>(&cuda::cluster_entry<Shared, Body>);
  const int64_t dynamic = cuda::dynamic_bytes_on<Shared, Body>(device, entry);
  return cuda::most_in_cluster(device, entry, {1, max_threads<Body>(), dynamic},
                               cuda::known_most_in_cluster<Shared, Body>);
}

template <class Shared, class Body>
void cluster_kernel(StreamRef stream, Clusters grid, const Body& body) {
  static_assert(std::is_trivially_copyable_v<Body> && !std::is_empty_v<Shared>);
  if (grid.clusters <= 0) return;
  void* arguments[] = {const_cast<Body*>(&body)};
  const void* const entry = reinterpret_cast<const void*>(&cuda::cluster_entry<Shared, Body>);
  const int64_t most = cuda::dynamic_bytes_on<Shared, Body>(stream.device(), entry);
  cuda::launch(stream, entry, grid, grid.dynamic_bytes != 0 ? grid.dynamic_bytes : most, arguments,
               kernel_name<Body>());
}

}  // namespace encore::device
