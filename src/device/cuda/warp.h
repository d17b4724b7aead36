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
  __device__ __forceinline__ int index() const { return int(threadIdx.x / 32); }
  template <class F>
  __device__ __forceinline__ void lanes(F f) const {
    f(lane());
    __syncwarp();
  }
  template <class F>
  __device__ __forceinline__ void apart(F f) const {
    f(lane());
  }
  template <int kColumns, class F, class Op>
  __device__ __forceinline__ void reduce_columns(F value_of, Op op) const {
    static_assert(kColumns <= 32 && (kColumns & (kColumns - 1)) == 0);
    auto& own = value_of(lane());
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
    const int lane = this->lane(), in_team = lane & (lanes - 1);
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
  // A shuffle tells itself which lanes have another so far before them.
  template <class F>
  __device__ __forceinline__ void sums_before(F value_of) const {
    int& own = value_of(lane());
    int sum = own;
    UNROLL for (int offset = 1; offset < 32; offset *= 2) asm volatile(
        "{\n .reg .pred any;\n .reg .s32 before;\n shfl.sync.up.b32 before|any, %0, %1, 0, -1;\n"
        " @any add.s32 %0, %0, before;\n}" : "+r"(sum) : "r"(offset));
    own = sum - own;
  }
  template <class F>
  __device__ __forceinline__ auto least(F value_of) const {
    const auto value = value_of(lane());
    using Value = std::remove_const_t<decltype(value)>;
    static_assert(std::is_unsigned_v<Value>);
    if constexpr (sizeof(Value) == 8) {
      const unsigned own = unsigned(value >> 32), high = __reduce_min_sync(0xffffffffu, own);
      return Value(high) << 32 | __reduce_min_sync(0xffffffffu, own == high ? unsigned(value) : 0xffffffffu);
    } else {
      return Value(__reduce_min_sync(0xffffffffu, unsigned(value)));
    }
  }
  template <class F>
  __device__ __forceinline__ auto most(F value_of) const {
    const auto value = value_of(lane());
    static_assert(std::is_unsigned_v<std::remove_const_t<decltype(value)>> && sizeof(value) <= 4);
    return std::remove_const_t<decltype(value)>(__reduce_max_sync(0xffffffffu, unsigned(value)));
  }
  template <class F>
  __device__ __forceinline__ int sum(F value_of) const {
    return __reduce_add_sync(0xffffffffu, int(value_of(lane())));
  }
  template <class F>
  __device__ __forceinline__ uint32_t votes(F value_of) const {
    return __ballot_sync(0xffffffffu, value_of(lane()));
  }
  template <class F>
  __device__ __forceinline__ auto from(int lane, F value_of) const {
    return detail::shuffle(value_of(this->lane()), [&](auto word) { return __shfl_sync(0xffffffffu, word, lane); });
  }
  template <int kMany, class F>
  __device__ __forceinline__ void exchange(int mask, F values_of) const {
    auto* const values = values_of(lane());
    UNROLL for (int i = 0; i < kMany; ++i) values[i] =
        detail::shuffle(values[i], [&](auto word) { return __shfl_xor_sync(0xffffffffu, word, mask); });
  }
  template <class F>
  __device__ __forceinline__ void transpose(F pair_of) const {
    uint32_t& pair = pair_of(lane());
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(pair));
  }
  template <class T, class OfC, class OfA, class OfB>
  __device__ __forceinline__ void mma(OfC c_of, OfA a_of, OfB b_of) const {
    const int lane = this->lane();
    const FragmentA a = a_of(lane);
    const FragmentB b = b_of(lane);
    FragmentC& c = c_of(lane);
    if constexpr (std::is_same_v<T, Half>)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
          : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
    else if constexpr (std::is_same_v<T, BFloat16>)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
          : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
    else
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
          : "r"(tf32(a.at[0])), "r"(tf32(a.at[1])), "r"(tf32(a.at[2])), "r"(tf32(a.at[3])), "r"(tf32(b.at[0])),
            "r"(tf32(b.at[1])));
  }

 private:
  __device__ __forceinline__ static int lane() { return int(threadIdx.x % 32); }
  // Of the bits of a float; the tensor cores cut off the last 13.
  __device__ __forceinline__ static uint32_t tf32(uint32_t bits) {
    return isfinite(__uint_as_float(bits)) ? bits + 0x1000 : bits;
  }
};

template <class Shared, class F>
__device__ __forceinline__ void for_each_warp(Block<Shared>& b, F f) {
  b.threads([&](int, Shared& s) { f(Warp(), s); });
}

}  // namespace encore::device
