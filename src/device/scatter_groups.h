// Sums of several values within groups of threads, of which each thread gets one.
//   scatter_groups<kWidth, kParts>(block, out, values_of, op)
// combines, over kWidth neighbouring threads, each of the kParts values that values_of(t, parts) gives; thread t's slot
// gets the one at t % kParts. Both are powers of two, kParts at most kWidth, which is at most 32. As Block's
// collectives it is a phase, and `op`, which must be associative, has its operands in the same order for all threads.
#pragma once
#include "device/launch.h"

namespace encore::device {

#ifdef __CUDACC__

namespace detail {
// Word by word: of two addresses in registers none can be chosen.
template <class T>
__device__ __forceinline__ T chosen(bool first, const T& a, const T& b) {
  static_assert(sizeof(T) % 4 == 0);
  unsigned of_a[sizeof(T) / 4], of_b[sizeof(T) / 4];
  memcpy(of_a, &a, sizeof(T));
  memcpy(of_b, &b, sizeof(T));
  UNROLL for (size_t i = 0; i < sizeof(T) / 4; ++i) of_a[i] = first ? of_a[i] : of_b[i];
  T value;
  memcpy(&value, of_a, sizeof(T));
  return value;
}
}  // namespace detail

template <int kWidth, int kParts, class T, class Shared, int kMax, class F, class Op>
__device__ __forceinline__ void scatter_groups(Block<Shared>&, PerThread<T, kMax>& out, F values_of, Op op) {
  static_assert(kWidth <= 32 && kParts <= kWidth && (kParts & (kParts - 1)) == 0);
  const auto from_other = [](const T& value, int mask) {
    return detail::shuffle(value, [&](auto word) { return __shfl_xor_sync(0xffffffffu, word, mask); });
  };
  T parts[kParts];
  values_of(int(threadIdx.x), parts);
  UNROLL for (int mask = kParts / 2; mask > 0; mask /= 2) {  // each time half of them go to the other thread
    const bool upper = threadIdx.x & unsigned(mask);
    UNROLL for (int i = 0; i < mask; ++i) {
      const T own = detail::chosen(upper, parts[i + mask], parts[i]);
      const T other = from_other(detail::chosen(upper, parts[i], parts[i + mask]), mask);
      parts[i] = op(detail::chosen(upper, other, own), detail::chosen(upper, own, other));
    }
  }
  T value = parts[0];
  UNROLL for (int mask = kParts; mask < kWidth; mask *= 2) {
    const T other = from_other(value, mask);
    value = threadIdx.x & unsigned(mask) ? op(other, value) : op(value, other);
  }
  out.value = value;
  __syncthreads();
}

#else

template <int kWidth, int kParts, class T, class Shared, int kMax, class F, class Op>
void scatter_groups(Block<Shared>& block, PerThread<T, kMax>& out, F values_of, Op op) {
  static_assert(kWidth <= 32 && kParts <= kWidth && (kParts & (kParts - 1)) == 0);
  struct Parts {
    T of[kParts];
  };
  PerThread<Parts, kMax> parts;
  virtual_gpu::for_each(block.size(), [&](int64_t t) { values_of(int(t), parts[int(t)].of); });
  for (int first = 0; first < block.size(); first += kWidth) {
    Parts all = parts[first];
    for (int t = first + 1; t < first + kWidth; ++t)
      for (int i = 0; i < kParts; ++i) all.of[i] = op(all.of[i], parts[t].of[i]);
    for (int t = first; t < first + kWidth; ++t) out[t] = all.of[t % kParts];
  }
}

#endif

}  // namespace encore::device
