// Launches on CUDA: a phase is straight-line code and one __syncthreads(); collectives are shuffles.
#pragma once
#include <cuda_runtime.h>

#include <cstring>

#include "device/cuda/check.h"

namespace encore::device {

template <class T, int kMaxThreads>
struct PerThread {
  T value;
  DEVICE_FN T& operator[](int) { return value; }
};

namespace detail {
// A shuffle of any trivially copyable type, four bytes at a time.
template <class T>
__device__ __forceinline__ T shuffle_xor(T value, int mask) {
  if constexpr (sizeof(T) == 4 || sizeof(T) == 8) {
    if constexpr (sizeof(T) == 4) {
      unsigned raw;
      memcpy(&raw, &value, 4);
      raw = __shfl_xor_sync(0xffffffffu, raw, mask);
      memcpy(&value, &raw, 4);
    } else {
      unsigned long long raw;
      memcpy(&raw, &value, 8);
      raw = __shfl_xor_sync(0xffffffffu, raw, mask);
      memcpy(&value, &raw, 8);
    }
    return value;
  } else {
    constexpr int kWords = (sizeof(T) + 3) / 4;
    unsigned raw[kWords] = {};
    memcpy(raw, &value, sizeof(T));
    UNROLL for (int i = 0; i < kWords; ++i) raw[i] = __shfl_xor_sync(0xffffffffu, raw[i], mask);
    memcpy(&value, raw, sizeof(T));
    return value;
  }
}
}  // namespace detail

template <class Shared>
class Block {
 public:
  __device__ __forceinline__ Block(Shared& shared, unsigned char* lanes) : shared_(shared), lanes_(lanes) {}
  __device__ __forceinline__ int64_t index() const { return blockIdx.x; }
  __device__ __forceinline__ int64_t count() const { return gridDim.x; }
  __device__ __forceinline__ int size() const { return int(blockDim.x); }

  template <class F>
  __device__ __forceinline__ void threads(F f) {
    f(int(threadIdx.x), shared_);
    __syncthreads();
  }
  template <class T, class F, class Op>
  __device__ __forceinline__ T reduce(T zero, F value_of, Op op) {
    static_assert(sizeof(T) <= 16);
    T value = in_group<32>(value_of(int(threadIdx.x)), op);
    if (blockDim.x == 32) return op(zero, value);
    T* lanes = reinterpret_cast<T*>(lanes_);
    if (threadIdx.x % 32 == 0) lanes[threadIdx.x / 32] = value;
    __syncthreads();
    const int warps = int(blockDim.x) / 32;
    T all = zero;
    if (warps == 32) {
      all = op(zero, in_group<32>(lanes[threadIdx.x % 32], op));
    } else {
      for (int w = 0; w < warps; ++w) all = op(all, lanes[w]);
    }
    __syncthreads();
    return all;
  }
  template <int kWidth, class T, int kMax, class F, class Op>
  __device__ __forceinline__ void reduce_groups(PerThread<T, kMax>& out, F value_of, Op op) {
    static_assert(kWidth <= 32 && (kWidth & (kWidth - 1)) == 0);
    out.value = in_group<kWidth>(value_of(int(threadIdx.x)), op);
  }
  // Exclusive scan over the block in thread order, starting from `zero`; returns the total. `op` must be associative.
  template <class T, int kMax, class F, class Op>
  __device__ __forceinline__ T scan(PerThread<T, kMax>& out, T zero, F value_of, Op op) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, warps = int(blockDim.x) / 32;
    const T own = value_of(int(threadIdx.x));
    T running = own;
    UNROLL for (int offset = 1; offset < 32; offset *= 2) {
      const T before = __shfl_up_sync(0xffffffffu, running, offset);
      if (lane >= offset) running = op(before, running);
    }
    T* lanes = reinterpret_cast<T*>(lanes_);
    if (lane == 31) lanes[warp] = running;
    T before_in_warp = __shfl_up_sync(0xffffffffu, running, 1);
    __syncthreads();
    T base = zero, total = zero;
    for (int w = 0; w < warps; ++w) {
      if (w == warp) base = total;
      total = op(total, lanes[w]);
    }
    out.value = lane == 0 ? base : op(base, before_in_warp);
    __syncthreads();
    return total;
  }

 private:
  template <int kWidth, class T, class Op>
  __device__ __forceinline__ T in_group(T value, Op op) {
    UNROLL for (int mask = kWidth / 2; mask > 0; mask /= 2) value = op(value, detail::shuffle_xor(value, mask));
    return value;
  }
  Shared& shared_;
  unsigned char* lanes_;
};

namespace cuda {
template <class Shared, class Body>
__global__ void __launch_bounds__(1024) block_entry(const __grid_constant__ Body body) {
  __shared__ alignas(16) unsigned char shared[sizeof(Shared)];
  __shared__ alignas(16) unsigned char lanes[32 * 16];
  Shared& typed = *reinterpret_cast<Shared*>(shared);
  Block<Shared> block(typed, lanes);
  body(block, static_cast<const Shared&>(typed));
}
template <class F>
__global__ void __launch_bounds__(256) index_entry(int64_t n, const __grid_constant__ F f) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) f(i);
}
// Launches and notes the label; throws Error{device_failed or capture_*} naming the kernel.
void launch(StreamRef stream, const void* entry, Blocks grid, void** arguments, std::string_view kernel);
}  // namespace cuda

template <class Shared, class Body>
void block_kernel(StreamRef stream, Blocks grid, const Body& body) {
  if (grid.blocks <= 0) return;
  void* arguments[] = {const_cast<Body*>(&body)};
  cuda::launch(stream, reinterpret_cast<const void*>(&cuda::block_entry<Shared, Body>), grid, arguments, kernel_name<Body>());
}

template <class F>
void for_each_index(StreamRef stream, int64_t n, const F& f) {
  if (n <= 0) return;
  constexpr int kThreads = 256;
  constexpr int64_t kMostBlocks = 132 * 32;
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  void* arguments[] = {&n, const_cast<F*>(&f)};
  cuda::launch(stream, reinterpret_cast<const void*>(&cuda::index_entry<F>), {blocks < kMostBlocks ? blocks : kMostBlocks, kThreads},
               arguments, kernel_name<F>());
}

// Atomics on device memory.
template <class T>
DEVICE_FN T atomic_add(T* to, T value) {
  return atomicAdd(to, value);
}
template <class T>
DEVICE_FN T atomic_max(T* to, T value) {
  return atomicMax(to, value);
}
DEVICE_FN int atomic_exchange_if(int* to, int expected, int value) { return atomicCAS_system(to, expected, value); }

}  // namespace encore::device
