// Woven weights, which prepacking makes once: codes in the order in which tensor cores take them.
//
// The rows of a matrix stand in tiles of 16; of a tile, a unit is 64 bytes of each row. A unit's codes are two halves,
// of the rows 0 to 7 and 8 to 15, in each of which the lane 4 * row + part has 16 bytes. Codes side by side along the
// depth make a group: of it each of a row's four lanes has a part, and a group has one scale and one zero point. Within
// a word neighbours lie 16 bits apart, so that masks find them as a pair.
#pragma once
#include <bit>
#include <utility>

#include "device/pair.h"
#include "device/warp.h"
#include "ops/quantize/block_weights.h"

namespace encore::ops {

template <int kBits>
struct Weave {
  static constexpr int kRows = 16, kBytes = 1024;  // of a unit
  static constexpr int kPairs = 16 / kBits, kInWord = 2 * kPairs;
  static constexpr int kWords = kBits == 8 ? 2 : 1, kPart = kWords * kInWord;  // of a group that a lane has
  static constexpr int kGroup = 4 * kPart, kGroups = 4 / kWords, kUnit = kGroups * kGroup;

  static int64_t units(const BlockCodes& w) { return (w.blocks * w.block() + kUnit - 1) / kUnit; }
  static bool suits(const BlockCodes& w) { return w.block() >= kGroup; }
  // Groups of a unit that have scales of their own.
  static int shares(const BlockCodes& w) { return w.block() >= kUnit ? 1 : kGroups; }

  // Where in a unit the code `at` of a row begins: the byte of its word, and the bit in it.
  struct Place {
    int byte, bit;
  };
  DEVICE_FN static Place place(int row, int at) {
    const int group = at / kGroup, lane = row % 8 * 4 + at % kGroup / kPart, in_part = at % kPart;
    const int word = group * kWords + in_part / kInWord, code = in_part % kInWord;
    return {row / 8 * (kBytes / 2) + lane * 16 + word * 4, (code % 2 * kPairs + code / 2) * kBits};
  }
};

// Calls f.template operator()<kBits>().
template <class F>
auto for_bits(int bits, F f) {
  switch (bits) {
    case 2: return f.template operator()<2>();
    case 4: return f.template operator()<4>();
    default: return f.template operator()<8>();
  }
}

// Whole numbers in 8 bits find no room in a bfloat16's mantissa beside a power of two; by way of float they do.
template <class T, int kBits>
struct Numbers : device::PairedCodes<T, kBits> {
  using device::PairedCodes<T, kBits>::PairedCodes;
};
template <>
struct Numbers<device::BFloat16, 8> {
  float zero;
  Numbers() = default;
  DEVICE_FN explicit Numbers(uint32_t zeros) : zero(above(zeros & 0xff)) {}
  template <int kI>
  DEVICE_FN uint32_t pair(uint32_t word) const {
    return device::as_pair<device::BFloat16>(above(word >> 8 * kI & 0xff) - zero,
                                             above(word >> (16 + 8 * kI) & 0xff) - zero);
  }

 private:
  DEVICE_FN static float above(uint32_t code) { return std::bit_cast<float>(0x4b000000u | code); }  // 2^23 more
};

}  // namespace encore::ops
