// Launches on CUDA: a phase is straight-line code and one __syncthreads(); collectives are shuffles.
#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <cstring>
#include <type_traits>

#include "device/cuda/check.h"
#include "device/graph.h"
#include "device/ranked.h"

namespace encore::device {

template <class T, int kMaxThreads>
struct PerThread {
  T value;
  DEVICE_FN T& operator[](int) { return value; }
};

namespace detail {
// Applies a warp shuffle to any trivially copyable type, in words of four or eight bytes.
template <class T, class F>
__device__ __forceinline__ T shuffle(const T& value, F shuffle_word) {
  using Word = std::conditional_t<sizeof(T) % 8 == 0, unsigned long long, unsigned>;
  constexpr int kWords = int((sizeof(T) + sizeof(Word) - 1) / sizeof(Word));
  Word words[kWords] = {};
  memcpy(words, &value, sizeof(T));
  UNROLL for (int i = 0; i < kWords; ++i) words[i] = shuffle_word(words[i]);
  T shuffled;
  memcpy(&shuffled, words, sizeof(T));
  return shuffled;
}
}  // namespace detail

namespace cuda {
// A kernel may be started while the one before it in the stream still runs (launch() says so): its blocks are there
// when that one's leave. It waits for the end of that one, which has waited for the one before it.
__device__ __forceinline__ void let_the_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_earlier_work() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
}  // namespace cuda

template <class Shared>
class Block {
 public:
  __device__ __forceinline__ Block(Shared& shared, unsigned char* lanes, unsigned char* dynamic)
      : shared_(shared), lanes_(lanes), dynamic_(dynamic) {}
  __device__ __forceinline__ int64_t index() const { return int64_t(blockIdx.x); }
  __device__ __forceinline__ int64_t count() const { return gridDim.x; }
  __device__ __forceinline__ int size() const { return int(blockDim.x); }

  template <class F>
  __device__ __forceinline__ void threads(F f) {
    f(int(threadIdx.x), shared_);
    __syncthreads();
  }
  __device__ __forceinline__ void wait() const { cuda::wait_for_earlier_work(); }
  // The launch's dynamic shared memory from a byte on, which must suit T; at most 16 bytes of alignment are promised.
  template <class T>
  __device__ __forceinline__ T* dynamic(Shared&, int64_t byte = 0) const {
    static_assert(!std::is_empty_v<Shared>, "collectives take a body without Shared for one that shares nothing");
    return reinterpret_cast<T*>(dynamic_ + byte);
  }
  template <class T>
  __device__ __forceinline__ const T* dynamic(const Shared&, int64_t byte = 0) const {
    static_assert(!std::is_empty_v<Shared>);
    return reinterpret_cast<const T*>(dynamic_ + byte);
  }
  // Combines value_of(thread) over the block; every thread sees the same bits. `op` must be associative; its operands
  // are in thread order.
  template <class T, class F, class Op>
  __device__ __forceinline__ T reduce(T zero, F value_of, Op op) {
    static_assert(sizeof(T) <= kLaneBytes);
    const T value = in_group<32>(value_of(int(threadIdx.x)), op);
    const int warps = int(blockDim.x) / 32;
    if (warps == 1) {
      __syncwarp();  // a phase that follows may overwrite what value_of read
      return op(zero, value);
    }
    T* lanes = reinterpret_cast<T*>(lanes_);
    if (threadIdx.x % 32 == 0) lanes[threadIdx.x / 32] = value;
    __syncthreads();
    T all = zero;
    if (warps == 32) {
      all = op(zero, in_group<32>(lanes[threadIdx.x % 32], op));
    } else {
      for (int w = 0; w < warps; ++w) all = op(all, lanes[w]);
    }
    __syncthreads();
    return all;
  }
  // The same within groups of kWidth neighbouring threads (a power of two up to 32); the result goes to each thread's
  // slot.
  template <int kWidth, class T, int kMax, class F, class Op>
  __device__ __forceinline__ void reduce_groups(PerThread<T, kMax>& out, F value_of, Op op) {
    static_assert(kWidth <= 32 && (kWidth & (kWidth - 1)) == 0);
    out.value = in_group<kWidth>(value_of(int(threadIdx.x)), op);
    // A phase that follows may overwrite what value_of read: anywhere in Shared, else only values of its own group.
    if constexpr (std::is_empty_v<Shared>)
      __syncwarp();
    else
      __syncthreads();
  }
  // Exclusive scan over the block in thread order, starting from `zero`; returns the total. `op` must be associative.
  template <class T, int kMax, class F, class Op>
  __device__ __forceinline__ T scan(PerThread<T, kMax>& out, T zero, F value_of, Op op) {
    static_assert(sizeof(T) <= kLaneBytes);
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, warps = int(blockDim.x) / 32;
    T running = value_of(int(threadIdx.x));
    UNROLL for (int offset = 1; offset < 32; offset *= 2) {
      const T before = from_below(running, offset);
      if (lane >= offset) running = op(before, running);
    }
    T* lanes = reinterpret_cast<T*>(lanes_);
    if (lane == 31) lanes[warp] = running;
    const T before = from_below(running, 1);
    __syncthreads();
    T base = zero, total = zero;
    for (int w = 0; w < warps; ++w) {
      if (w == warp) base = total;
      total = op(total, lanes[w]);
    }
    out.value = lane == 0 ? base : op(base, before);
    __syncthreads();
    return total;
  }

 private:
  // The lower thread's value is always the left operand, so that all threads compute the very same.
  template <int kWidth, class T, class Op>
  __device__ __forceinline__ T in_group(T value, Op op) {
    if constexpr (kWidth == 32 && std::is_same_v<T, Ranked<int32_t>> && std::is_same_v<Op, HigherRank>) {
      const int32_t rank = __reduce_max_sync(0xffffffffu, value.rank);
      return {rank, __reduce_max_sync(0xffffffffu, value.rank == rank ? value.place : INT32_MIN)};
    } else {
      UNROLL for (int mask = 1; mask < kWidth; mask *= 2) {
        const T other = detail::shuffle(value, [&](auto word) { return __shfl_xor_sync(0xffffffffu, word, mask); });
        value = threadIdx.x & mask ? op(other, value) : op(value, other);
      }
      return value;
    }
  }
  template <class T>
  __device__ __forceinline__ T from_below(const T& value, int distance) {
    return detail::shuffle(value, [&](auto word) { return __shfl_up_sync(0xffffffffu, word, distance); });
  }
  Shared& shared_;
  unsigned char* lanes_;
  unsigned char* dynamic_;
};

namespace cuda {
template <class Shared, class Body>
__global__ void __launch_bounds__(max_threads<Body>()) block_entry(const __grid_constant__ Body body) {
  __shared__ alignas(16) alignas(Shared) unsigned char shared[sizeof(Shared)];
  __shared__ alignas(16) unsigned char lanes[kLanesBytes];
  extern __shared__ __align__(16) unsigned char dynamic[];
  static_assert(sizeof(shared) + sizeof(lanes) <= 48 * 1024, "Shared is too large for a block");
  Shared& typed = *reinterpret_cast<Shared*>(shared);
  Block<Shared> block(typed, lanes, dynamic);
  let_the_next_begin();
  if constexpr (!begins_early<Body>()) wait_for_earlier_work();
  body(block, static_cast<const Shared&>(typed));
}
template <class F>
__global__ void __launch_bounds__(256) index_entry(int64_t n, const __grid_constant__ F f) {
  let_the_next_begin();
  wait_for_earlier_work();
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) f(i);
}
// A thread for each index; for more than keep the GPU busy, one for several.
Blocks blocks_for(StreamRef stream, int64_t indices);
// Launches, on the calling thread's current device; in a capture notes the Label. Errors name the kernel.
void launch(StreamRef stream, const void* entry, Blocks grid, void** arguments, KernelName kernel);
void set_kernel(const GraphExec& exec, KernelNode node, const void* entry, const Blocks& grid, void** arguments,
                KernelName kernel);
// Lets a kernel have all the shared memory that there is on the device, once for each of both: `allowed` has a bit for
// each device. Error{invalid_input} if `dynamic_bytes` are more than that.
void allow_dynamic(int device, const void* entry, int64_t dynamic_bytes, std::atomic<uint32_t>& allowed,
                   KernelName kernel);
template <class Shared, class Body>
inline std::atomic<uint32_t> allowed_dynamic{0};
}  // namespace cuda

template <class Shared, class Body>
void block_kernel(StreamRef stream, Blocks grid, const Body& body) {
  static_assert(std::is_trivially_copyable_v<Body>);
  if (grid.blocks <= 0) return;
  void* arguments[] = {const_cast<Body*>(&body)};
  const void* const entry = reinterpret_cast<const void*>(&cuda::block_entry<Shared, Body>);
  if (grid.dynamic_bytes != 0)
    cuda::allow_dynamic(stream.device(), entry, grid.dynamic_bytes, cuda::allowed_dynamic<Shared, Body>,
                        kernel_name<Body>());
  cuda::launch(stream, entry, grid, arguments, kernel_name<Body>());
}

template <class Shared, class Body>
void set_block_kernel(const GraphExec& exec, KernelNode node, Blocks grid, const Body& body) {
  static_assert(std::is_trivially_copyable_v<Body>);
  void* arguments[] = {const_cast<Body*>(&body)};
  cuda::set_kernel(exec, node, reinterpret_cast<const void*>(&cuda::block_entry<Shared, Body>), grid, arguments,
                   kernel_name<Body>());
}

template <class F>
void for_each_index(StreamRef stream, int64_t n, const F& f) {
  static_assert(std::is_trivially_copyable_v<F>);
  if (n <= 0) return;
  void* arguments[] = {&n, const_cast<F*>(&f)};
  cuda::launch(stream, reinterpret_cast<const void*>(&cuda::index_entry<F>), cuda::blocks_for(stream, n), arguments,
               kernel_name<F>());
}

// Atomics on device memory.
template <class T>
DEVICE_FN T atomic_add(T* to, T value) {
  if constexpr (std::is_integral_v<T> && sizeof(T) == 8)  // two's complement: the sign does not matter
    return T(atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value)));
  else
    return atomicAdd(to, value);
}
// Writes `value` if `*to` holds `expected`; returns what it held. The host may look at `to` meanwhile.
DEVICE_FN int atomic_exchange_if(int* to, int expected, int value) { return atomicCAS(to, expected, value); }

}  // namespace encore::device
