// Woven codes that become factors by masks alone. What a code is too much by, its zero point too, is too much as often
// as the other factor is large, so the sums of the other factors take it off again: once for a group, not for each
// code.
//   a Half       has a code in its lowest bits, or further up, and is so many times its smallest number
//   a BFloat16   is 128 more than four bits, of which it has room for no more: eight bits are two of them
#pragma once
#include <type_traits>
#include <utility>

#include "device/pair.h"
#include "device/warp.h"
#include "ops/quantize/weave.h"

namespace encore::ops {

template <class T, int kBits>
struct BareCodes {
  using Form = Weave<kBits>;
  static constexpr bool kHalf = std::is_same_v<T, Half>;
  static constexpr int kTaken = kHalf || kBits < 4 ? kBits : 4;  // of a code at once
  static constexpr int kFours = Form::kPairs / 2;                // of a word: an even pair and the one after
  static constexpr int kTimes = kBits / kTaken;
  // Sums that a group has. A code is the sum of what kTimes of them have of it, each so many times.
  static constexpr int kSums = kHalf ? kFours : kTimes;
  static constexpr uint32_t kMore = kHalf ? 0 : 0x43004300u;
  // Sums are as many times too small, and codes by so much too large.
  static constexpr float kUnit = kHalf ? 0x1p-24f : 1;
  static constexpr float kTooMuch = kHalf ? 0 : kTimes == 2 ? 128 * 17 : 128;

  // To which sum codes of a four go at the time kTime.
  static constexpr int sum_of(int four, int time) { return kHalf ? four : time; }
  static constexpr float times(int sum) {
    float times = 1;
    for (int i = 0; i < sum; ++i) times *= kHalf ? 1.f / float(1 << kBits) : 16;
    return times;
  }
  // Of two words, of rows of weights g and g + 8.
  template <int kFour, int kTime>
  DEVICE_FN static device::LeftTile left(uint32_t low, uint32_t high) {
    constexpr int kDown = kHalf ? 0 : kFour * kBits + kTime * kTaken, kUp = kHalf ? kFour * kBits : 0;
    constexpr uint32_t kMask = (((1u << kTaken) - 1) << kUp) * 0x10001u;
    const auto masked = [](uint32_t word) { return kMore ? device::masked_with<kMask>(word, kMore) : word & kMask; };
    return {{masked(low >> kDown), masked(high >> kDown), masked(low >> (kDown + 8)), masked(high >> (kDown + 8))}};
  }
};

}  // namespace encore::ops
