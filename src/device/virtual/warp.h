// Warps on the virtual GPU: phases are loops over 32 lanes, tiles are gathered from the lanes that hold them.
#pragma once
#include <algorithm>
#include <bit>
#include <type_traits>
#include <utility>

#include "device/virtual/tf32.h"
#include "device/warp.h"

namespace encore::device {

template <class T>
uint32_t as_pair(float low, float high) {
  return uint32_t(T(low).bits) | uint32_t(T(high).bits) << 16;
}
inline uint32_t low_halves(uint32_t low, uint32_t high) { return (low & 0xffffu) | high << 16; }
inline uint32_t high_halves(uint32_t low, uint32_t high) { return low >> 16 | (high & 0xffff0000u); }

class Warp {
 public:
  explicit Warp(int index) : index_(index) {}
  int index() const { return index_; }
  template <class F>
  void lanes(F f) const {
    virtual_gpu::for_each(32, [&](int64_t lane) { f(int(lane)); });
  }
  template <class F>
  void apart(F f) const {
    lanes(f);
  }
  template <int kColumns, class F, class Op>
  void reduce_columns(F value_of, Op op) const {
    static_assert(kColumns <= 32 && (kColumns & (kColumns - 1)) == 0);
    for (int column = 0; column < kColumns; ++column) {
      auto all = value_of(column);
      for (int lane = column + kColumns; lane < 32; lane += kColumns) all = op(all, value_of(lane));
      for (int lane = column; lane < 32; lane += kColumns) value_of(lane) = all;
    }
  }
  template <int kMany, class T, class F, class To, class Op>
  void scan(int lanes, T zero, F values_of, To totals_of, Op op) const {
    for (int first = 0; first < 32; first += lanes) {
      for (int i = 0; i < kMany; ++i) {
        T all = zero;
        for (int lane = first; lane < first + lanes; ++lane) {
          const T value = values_of(lane)[i];
          values_of(lane)[i] = all;
          all = lane == first ? value : op(all, value);
        }
        for (int lane = first; lane < first + lanes; ++lane) totals_of(lane)[i] = all;
      }
    }
  }
  template <class F>
  void sums_before(F value_of) const {
    int sum = 0;
    for (int lane = 0; lane < 32; ++lane) sum += std::exchange(value_of(lane), sum);
  }
  template <class F>
  auto least(F value_of) const {
    auto all = value_of(0);
    static_assert(std::is_unsigned_v<decltype(all)>);
    for (int lane = 1; lane < 32; ++lane) all = std::min(all, value_of(lane));
    return all;
  }
  template <class F>
  auto most(F value_of) const {
    auto all = value_of(0);
    static_assert(std::is_unsigned_v<decltype(all)> && sizeof(all) <= 4);
    for (int lane = 1; lane < 32; ++lane) all = std::max(all, value_of(lane));
    return all;
  }
  template <class F>
  int sum(F value_of) const {
    int all = 0;
    for (int lane = 0; lane < 32; ++lane) all += int(value_of(lane));
    return all;
  }
  template <class F>
  uint32_t votes(F value_of) const {
    uint32_t all = 0;
    for (int lane = 0; lane < 32; ++lane) all |= uint32_t(value_of(lane) ? 1 : 0) << lane;
    return all;
  }
  template <class F>
  auto from(int lane, F value_of) const {
    return value_of(lane);
  }
  template <int kMany, class F>
  void exchange(int mask, F values_of) const {
    for (int lane = 0; lane < 32; ++lane) {
      if (lane > (lane ^ mask)) continue;
      std::swap_ranges(values_of(lane), values_of(lane) + kMany, values_of(lane ^ mask));
    }
  }
  template <class F>
  void transpose(F pair_of) const {
    uint16_t matrix[8][8];
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 2; ++i) matrix[lane / 4][lane % 4 * 2 + i] = half_of(pair_of(lane), i);
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4, column = lane % 4 * 2;
      pair_of(lane) = uint32_t(matrix[column][row]) | uint32_t(matrix[column + 1][row]) << 16;
    }
  }
  template <class T, class OfC, class OfA, class OfB>
  void mma(OfC c_of, OfA a_of, OfB b_of) const {
    using Columns = float __attribute__((vector_size(16)));  // four of the eight that b and c have
    constexpr int kInWord = 4 / int(sizeof(T)), kHalf = 4 * kInWord, kDepth = 2 * kHalf;
    float a[16][kDepth];
    Columns b[kDepth][2], c[16][2];
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, two = lane % 4 * 2;
      const FragmentA of_a = a_of(lane);
      const FragmentB of_b = b_of(lane);
      const FragmentC& of_c = c_of(lane);
      for (int i = 0; i < kInWord; ++i) {
        const int k = lane % 4 * kInWord + i;
        for (int n = 0; n < 4; ++n) a[g + n % 2 * 8][n / 2 * kHalf + k] = value_of<T>(of_a.at[n], i);
        for (int n = 0; n < 2; ++n) b[n * kHalf + k][g / 4][g % 4] = value_of<T>(of_b.at[n], i);
      }
      for (int n = 0; n < 4; ++n) c[g + n / 2 * 8][two / 4][two % 4 + n % 2] = of_c.at[n];
    }
    for (int row = 0; row < 16; ++row) {
      Columns left = c[row][0], right = c[row][1];
      for (int k = 0; k < kDepth; ++k) left += a[row][k] * b[k][0], right += a[row][k] * b[k][1];
      c[row][0] = left, c[row][1] = right;
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, two = lane % 4 * 2;
      for (int n = 0; n < 4; ++n) c_of(lane).at[n] = c[g + n / 2 * 8][two / 4][two % 4 + n % 2];
    }
  }

 private:
  static uint16_t half_of(uint32_t pair, int i) { return uint16_t(pair >> 16 * i); }
  template <class T>
  static float value_of(uint32_t word, int i) {
    if constexpr (std::is_same_v<T, float>)
      return rounded_to_tf32(std::bit_cast<float>(word));
    else
      return float(std::bit_cast<T>(half_of(word, i)));
  }
  int index_;
};

template <class Shared, class F>
void for_each_warp(Block<Shared>& b, F f) {
  b.threads([&](int t, Shared& s) {
    if (t % 32 == 0) f(Warp(t / 32), s);
  });
}

}  // namespace encore::device
