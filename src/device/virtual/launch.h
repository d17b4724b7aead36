// Launches on the virtual GPU: a task on the stream's worker, captured by value, in which a phase is a loop.
#pragma once
#include <atomic>
#include <cstddef>
#include <type_traits>

#include "device/virtual/queue.h"

namespace encore::device {

template <class T, int kMaxThreads>
struct PerThread {
  T value[kMaxThreads];
  T& operator[](int t) { return value[t]; }
};

template <class Shared>
class Block {
 public:
  Block(int64_t index, int64_t count, int size, Shared& shared, std::byte* dynamic,
        virtual_gpu::EarlyBlock* early = nullptr)
      : index_(index), count_(count), size_(size), shared_(shared), dynamic_(dynamic), early_(early) {}
  int64_t index() const { return index_; }
  int64_t count() const { return count_; }
  int size() const { return size_; }
  void wait() {
    if (early_) early_->wait();
    std::atomic_ref<int>(waited_).fetch_add(1, std::memory_order_relaxed);
  }
  // Whether every thread has said wait().
  bool waited() const { return waited_ >= size_; }

  // A phase: f(thread, shared) for every thread of the block, in whatever order the virtual GPU was told to use.
  template <class F>
  void threads(F f) {
    const auto one = [&](int64_t t) { f(int(t), shared_); };
    virtual_gpu::run_phase(size_, virtual_gpu::loop_of<decltype(one)>, &one, early_);
  }
  // The launch's dynamic shared memory from a byte on, which must suit T; at most 16 bytes of alignment are promised.
  template <class T>
  T* dynamic(Shared&, int64_t byte = 0) const {
    static_assert(!std::is_empty_v<Shared>, "collectives take a body without Shared for one that shares nothing");
    return reinterpret_cast<T*>(dynamic_ + byte);
  }
  template <class T>
  const T* dynamic(const Shared&, int64_t byte = 0) const {
    static_assert(!std::is_empty_v<Shared>);
    return reinterpret_cast<const T*>(dynamic_ + byte);
  }
  // Combines value_of(thread) over the block; every thread sees the result.
  template <class T, class F, class Op>
  T reduce(T zero, F value_of, Op op) {
    PerThread<T, 1024> values;
    virtual_gpu::for_each(size_, [&](int64_t t) { values[int(t)] = value_of(int(t)); });
    for (int t = 0; t < size_; ++t) zero = op(zero, values[t]);
    return zero;
  }
  // The same within groups of kWidth neighbouring threads (a power of two up to 32); the result goes to each thread's
  // slot.
  template <int kWidth, class T, int kMax, class F, class Op>
  void reduce_groups(PerThread<T, kMax>& out, F value_of, Op op) {
    static_assert(kWidth <= 32 && (kWidth & (kWidth - 1)) == 0);
    virtual_gpu::for_each(size_, [&](int64_t t) { out[int(t)] = value_of(int(t)); });
    for (int first = 0; first < size_; first += kWidth) {
      T all = out[first];
      for (int t = first + 1; t < first + kWidth; ++t) all = op(all, out[t]);
      for (int t = first; t < first + kWidth; ++t) out[t] = all;
    }
  }
  // Exclusive scan over the block in thread order, starting from `zero`; returns the total.
  template <class T, int kMax, class F, class Op>
  T scan(PerThread<T, kMax>& out, T zero, F value_of, Op op) {
    virtual_gpu::for_each(size_, [&](int64_t t) { out[int(t)] = value_of(int(t)); });
    for (int t = 0; t < size_; ++t) {
      const T value = out[t];
      out[t] = zero;
      zero = op(zero, value);
    }
    return zero;
  }

 private:
  const int64_t index_, count_;
  const int size_;
  int waited_ = 0;
  Shared& shared_;
  std::byte* const dynamic_;
  virtual_gpu::EarlyBlock* const early_;
};

namespace virtual_gpu {
template <class Shared, class Body>
bool run_block(const void* body, int64_t index, const Blocks& grid, void* shared, std::byte* dynamic,
               EarlyBlock* early) {
  static_assert(alignof(Shared) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  auto& own = *static_cast<Shared*>(shared);
  Block<Shared> block(index, grid.blocks, grid.threads, own, dynamic, early);
  (*static_cast<const Body*>(body))(block, static_cast<const Shared&>(own));
  return block.waited();
}
}  // namespace virtual_gpu

template <class Shared, class Body>
void block_kernel(StreamRef stream, Blocks grid, const Body& body) {
  if (grid.blocks <= 0) return;
  virtual_gpu::check_grid(grid, sizeof(Shared), max_threads<Body>());
  virtual_gpu::enqueue_blocks(stream, kernel_name<Body>(), grid, virtual_gpu::functor(body), sizeof(Shared),
                              begins_early<Body>(), virtual_gpu::run_block<Shared, Body>);
}

template <class Shared, class Body>
void set_block_kernel(const GraphExec& exec, KernelNode node, Blocks grid, const Body& body) {
  virtual_gpu::check_grid(grid, sizeof(Shared), max_threads<Body>());
  virtual_gpu::set_blocks(exec, node, kernel_name<Body>(), grid, virtual_gpu::functor(body), sizeof(Shared),
                          begins_early<Body>(), virtual_gpu::run_block<Shared, Body>);
}

template <class F>
void for_each_index(StreamRef stream, int64_t n, const F& f) {
  if (n <= 0) return;
  virtual_gpu::enqueue_loop(stream, kernel_name<F>(), n, virtual_gpu::functor(f), virtual_gpu::loop_of<F>);
}

// Atomics on device memory.
template <class T>
T atomic_add(T* to, T value) {
  return std::atomic_ref<T>(*to).fetch_add(value, std::memory_order_relaxed);
}
// Writes `value` if `*to` holds `expected`; returns what it held.
inline int atomic_exchange_if(int* to, int expected, int value) {
  std::atomic_ref<int>(*to).compare_exchange_strong(expected, value);
  return expected;
}

}  // namespace encore::device
