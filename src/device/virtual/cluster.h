// Clusters on the virtual GPU: first the first half of each block, then the second.
#pragma once
#include <cstddef>
#include <cstring>
#include <memory>

#include "device/cluster.h"
#include "device/device.h"
#include "device/error.h"
#include "device/virtual/address_space.h"

namespace encore::device {

template <class Shared>
class Cluster {
 public:
  Cluster(const Shared* all, int size, int rank) : all_(all), size_(size), rank_(rank) {}
  int size() const { return size_; }
  int rank() const { return rank_; }
  const Shared& shared(int rank) const { return all_[rank]; }

 private:
  const Shared* all_;
  int size_, rank_;
};

namespace virtual_gpu {
int most_in_cluster();  // blocks of any kernel
// Of a body that has at most so much dynamic shared memory.
void check_clusters(const Clusters& grid, size_t shared_bytes, int64_t dynamic_bytes, int max_threads);
}  // namespace virtual_gpu

// How many blocks, with as many threads as they may have, a cluster can have: a power of two, 1 where there are no
// clusters; 0 where a block finds no shared memory.
template <class Shared, class Body>
int most_in_cluster(int device) {
  if (int64_t(sizeof(Shared)) + kLanesBytes + dynamic_bytes<Body>() > shared_bytes(device)) return 0;
  return virtual_gpu::most_in_cluster();
}

template <class Shared, class Body>
void cluster_kernel(StreamRef stream, Clusters grid, const Body& body) {
  static_assert(!std::is_empty_v<Shared>);
  if (grid.clusters <= 0) return;
  virtual_gpu::check_clusters(grid, sizeof(Shared), dynamic_bytes<Body>(), max_threads<Body>());
  const auto run = [grid, body = virtual_gpu::as_launched(body)](int64_t cluster, virtual_gpu::EarlyBlock* early) {
    const auto shared = std::unique_ptr<Shared[]>(new Shared[size_t(grid.blocks)]);
    std::memset(static_cast<void*>(shared.get()), 0xff, size_t(grid.blocks) * sizeof(Shared));  // NaN
    const size_t bytes = size_t(grid.dynamic_bytes != 0 ? grid.dynamic_bytes : dynamic_bytes<Body>());
    const auto dynamic = std::make_unique_for_overwrite<std::byte[]>(size_t(grid.blocks) * bytes);
    std::memset(dynamic.get(), 0xff, size_t(grid.blocks) * bytes);
    const auto in_each = [&](auto half) {
      virtual_gpu::for_each(grid.blocks, [&](int64_t rank) {
        Block<Shared> block(cluster * grid.blocks + rank, grid.clusters * grid.blocks, grid.threads, shared[rank],
                            dynamic.get() + size_t(rank) * bytes, early);
        half(block, static_cast<const Shared&>(shared[rank]), int(rank));
      });
    };
    in_each([&](Block<Shared>& block, const Shared& own, int) {
      body(block, own);
      if (begins_early<Body>() && !block.waited()) virtual_gpu::fail_unwaited(kernel_name<Body>());
    });
    in_each([&](Block<Shared>& block, const Shared& own, int rank) {
      body.join(block, own, Cluster<Shared>(shared.get(), grid.blocks, rank));
    });
  };
  virtual_gpu::enqueue(stream, kernel_name<Body>(), virtual_gpu::launch_of(grid.clusters, begins_early<Body>(), run));
}

}  // namespace encore::device
