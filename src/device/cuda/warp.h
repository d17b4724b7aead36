// Warps on CUDA: collectives are shuffles and the tensor cores' instructions.
#pragma once
#include <type_traits>

#include "device/warp.h"

namespace encore::device {

template <class T>
DEVICE_FN uint32_t as_pair(float low, float high) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, Half>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
DEVICE_FN uint32_t low_halves(uint32_t low, uint32_t high) { return __byte_perm(low, high, 0x5410); }
DEVICE_FN uint32_t high_halves(uint32_t low, uint32_t high) { return __byte_perm(low, high, 0x7632); }

class Warp {
 public:
  __device__ __forceinline__ int index() const { return int(threadIdx.x) / 32; }
  template <class F>
  __device__ __forceinline__ void lanes(F f) const {
    f(int(threadIdx.x) % 32);
    __syncwarp();
  }
  template <int kColumns, class F, class Op>
  __device__ __forceinline__ void reduce_columns(F value_of, Op op) const {
    static_assert(kColumns <= 32 && (kColumns & (kColumns - 1)) == 0);
    auto& own = value_of(int(threadIdx.x) % 32);
    auto value = own;
    UNROLL for (int mask = kColumns; mask < 32; mask *= 2) {  // all lanes compute the very same
      const auto other = __shfl_xor_sync(0xffffffffu, value, mask);
      value = threadIdx.x & mask ? op(other, value) : op(value, other);
    }
    own = value;
  }
  // Step by step for all, so that none waits for another.
  template <int kMany, class T, class F, class To, class Op>
  __device__ __forceinline__ void scan(int lanes, T zero, F values_of, To totals_of, Op op) const {
    const int lane = int(threadIdx.x) % 32, in_team = lane & (lanes - 1);
    T *const values = values_of(lane), *const totals = totals_of(lane);
    UNROLL for (int offset = 1; offset < 32; offset *= 2) {
      UNROLL for (int i = 0; i < kMany; ++i) {
        const T before = __shfl_up_sync(0xffffffffu, values[i], offset);
        if (in_team >= offset) values[i] = op(before, values[i]);
      }
    }
    UNROLL for (int i = 0; i < kMany; ++i) {
      totals[i] = __shfl_sync(0xffffffffu, values[i], lane | (lanes - 1));
      const T before = __shfl_up_sync(0xffffffffu, values[i], 1);
      values[i] = in_team == 0 ? zero : before;
    }
  }
  template <class F>
  __device__ __forceinline__ void transpose(F pair_of) const {
    uint32_t& pair = pair_of(int(threadIdx.x) % 32);
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(pair));
  }
  template <class T, class S, class L, class R>
  __device__ __forceinline__ void multiply(S sums_of, L left_of, R right_of) const {
    const int lane = int(threadIdx.x) % 32;
    const LeftTile left = left_of(lane);
    const RightTile right = right_of(lane);
    SumTile& sums = sums_of(lane);
    if constexpr (std::is_same_v<T, Half>)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(sums.at[0]), "+f"(sums.at[1]), "+f"(sums.at[2]), "+f"(sums.at[3])
          : "r"(left.at[0]), "r"(left.at[1]), "r"(left.at[2]), "r"(left.at[3]), "r"(right.at[0]), "r"(right.at[1]));
    else
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(sums.at[0]), "+f"(sums.at[1]), "+f"(sums.at[2]), "+f"(sums.at[3])
          : "r"(left.at[0]), "r"(left.at[1]), "r"(left.at[2]), "r"(left.at[3]), "r"(right.at[0]), "r"(right.at[1]));
  }
};

template <class Shared, class F>
__device__ __forceinline__ void for_each_warp(Block<Shared>& b, F f) {
  b.threads([&](int, Shared& s) { f(Warp(), s); });
}

}  // namespace encore::device
