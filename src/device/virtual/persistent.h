// Persistent kernels on the virtual GPU: step by step, each for all blocks.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>

#include "device/persistent.h"
#include "device/virtual/address_space.h"

namespace encore::device {

inline void StepValues::put(int64_t i, int64_t step, float value) const {
  std::atomic_ref<uint64_t>(slots_of(step)[i]).store(packed(value, step), std::memory_order_relaxed);
}

namespace virtual_gpu {
void check_persistent(const Persistent& grid, size_t shared_bytes, int max_threads);
// What would wait for ever.
[[noreturn]] void fail_unput(int64_t i, int64_t step);
}  // namespace virtual_gpu

template <int kPairs>
void StepValues::get_pairs(int64_t first, int64_t stride, int64_t end, int64_t step, Pack<float, 2>* pairs) const {
  for (int k = 0; k < kPairs; ++k)
    for (int64_t i = first + k * stride, half = 0; half < 2; ++half) {
      const uint64_t slot = i >= end
                                ? packed(0, step)
                                : std::atomic_ref<uint64_t>(slots_of(step)[i + half]).load(std::memory_order_relaxed);
      if (!is_of(step, slot)) virtual_gpu::fail_unput(i + half, step);
      pairs[k].at[half] = value_of(slot);
    }
}

template <class Shared, class Body>
void persistent_kernel(StreamRef stream, Persistent grid, const Body& body) {
  if (grid.blocks <= 0) return;
  virtual_gpu::check_persistent(grid, sizeof(Shared), max_threads<Body>());
  virtual_gpu::enqueue(stream, kernel_name<Body>(), [grid, body = virtual_gpu::as_launched(body)] {
    const auto shared = std::unique_ptr<Shared[]>(new Shared[size_t(grid.blocks)]);
    std::memset(static_cast<void*>(shared.get()), 0xff, size_t(grid.blocks) * sizeof(Shared));  // NaN
    const int64_t bytes = (grid.dynamic_bytes + 15) / 16 * 16;                                  // of a block
    const auto dynamic = std::make_unique_for_overwrite<std::byte[]>(size_t(grid.blocks * bytes));
    std::memset(dynamic.get(), 0xff, size_t(grid.blocks * bytes));
    using Own = PerThread<typename Body::Own, max_threads<Body>()>;
    const auto kept = std::unique_ptr<Own[]>(new Own[size_t(grid.blocks)]);
    const auto in_each = [&](const auto& part) {
      virtual_gpu::for_each(grid.blocks, [&](int64_t i) {
        Block<Shared> block(i, grid.blocks, grid.threads, shared[size_t(i)], dynamic.get() + i * bytes);
        part(block, static_cast<const Shared&>(shared[size_t(i)]), kept[size_t(i)]);
      });
    };
    in_each([&](Block<Shared>& block, const Shared& s, Own& own) { body.begin(block, s, own); });
    for (int64_t step = 0; step < grid.steps; ++step)
      in_each([&](Block<Shared>& block, const Shared& s, Own& own) { body(block, s, own, step); });
  });
}

}  // namespace encore::device
