// Weights by one row, as the warps of a persistent kernel multiply them. A warp has a ring of slots in shared memory,
// into which it asks for units well before it needs them.
#pragma once
#include <bit>
#include <cmath>

#include "device/copy_async.h"
#include "device/warp.h"
#include "ops/quantize/woven_units.h"

namespace encore::ops {

// As they lie: [depth, columns] of halves. A unit is 4 KiB, 16 columns wide or 32 or 64, so that lines of memory are
// read whole where blocks have many columns; in a slot eight columns of all its rows lie together.
template <class T>
struct PlainColumns {
  using FragmentC = device::FragmentC;
  static constexpr int kUnit = 128, kRing = 2, kSlot = 4096;  // kUnit: rows of the narrowest
  static constexpr int kSums = 4;  // of as many tiles of 16 columns, or of fewer in turns: mma takes its time
  struct Sums {
    FragmentC at[kSums];
  };
  template <class V>
  using PerLane = device::PerThread<V, 32>;

  const T* weights;
  int columns, width_log2;  // width: of a unit, in tiles of 16 columns

  template <class Product>
  DEVICE_FN static PlainColumns of(const Product& p) {
    return {static_cast<const T*>(p.weights), p.columns, p.width_log2};
  }
  DEVICE_FN void ask(unsigned char* slot, int lane, int unit_column, int unit, int /*units*/) const {
    const int eight = lane & ((2 << width_log2) - 1), row = lane >> (1 + width_log2), step = 16 >> width_log2;
    const T* const from =
        weights + size_t((unit << rows_log2()) + row) * size_t(columns) + (unit_column << (4 + width_log2)) + eight * 8;
    UNROLL for (int i = 0; i < 8; ++i) device::copy_async_or_zeros(place(slot, eight, row + i * step),
                                                                   from + size_t(i * step) * size_t(columns), true);
  }
  DEVICE_FN void multiply(const device::Warp& warp, PerLane<Sums>& sums, unsigned char* slot, const T* row,
                          int /*unit_column*/, int unit, int /*units*/) const {
    const auto* const pairs = reinterpret_cast<const uint32_t*>(row + (unit << rows_log2()));
    UNROLL for (int i = 0; i < 8; ++i) {
      const int tile = i & ((1 << width_log2) - 1), depth = i >> width_log2 << 4;  // tile i % kSums, if it is as wide
      const int matrices = (tile << (1 + rows_log2())) + depth;
      PerLane<device::FragmentA> left;
      warp.load_transposed(
          [&](int lane) { return place(slot, lane / 8 % 2, lane / 16 * 8 + lane % 8) + matrices * 16; },
          [&](int lane) { return left[lane].at; });
      // The row stands in all columns of the other factor.
      warp.template mma<T>([&](int lane) -> FragmentC& { return sums[lane].at[i % kSums]; },
                           [&](int lane) { return left[lane]; },
                           [&](int lane) {
                             const int at = depth / 2 + lane % 4;
                             return device::FragmentB{{pairs[at], pairs[at + 4]}};
                           });
    }
  }
  // The sums of a unit's columns, which are zeros from then on.
  DEVICE_FN void show(const device::Warp& warp, float* to, PerLane<Sums>& sums) const {
    warp.lanes([&](int lane) {
      if (lane % 4 == 0) {
        FragmentC(&of)[kSums] = sums[lane].at;
        const int tiles = 1 << width_log2;
        UNROLL for (int i = kSums / 2; i > 0; i /= 2) {
          if (i < tiles) break;
          UNROLL for (int n = 0; n < i; ++n) { UNROLL for (int r = 0; r < 4; r += 2) of[n].at[r] += of[n + i].at[r]; }
        }
        UNROLL for (int n = 0; n < kSums; ++n) {
          if (n >= tiles) break;
          UNROLL for (int r = 0; r < 2; ++r) to[n * kTilePitch + lane / 4 + 8 * r] = of[n].at[2 * r];
        }
      }
      sums[lane] = Sums{};
    });
  }

 private:
  DEVICE_FN int rows_log2() const { return 7 - width_log2; }
  // Neighbours are in other banks.
  DEVICE_FN unsigned char* place(unsigned char* slot, int eight, int row) const {
    return slot + (((eight << rows_log2()) + (row ^ (eight & 1) << 2)) << 4);
  }
};

// Woven ones of four bits, whose units are 16 columns wide.
template <class T, bool kZeros>
struct WovenColumns : WovenUnits<T, 4, 1, kZeros> {
  using Base = WovenUnits<T, 4, 1, kZeros>;
  using Form = typename Base::Form;
  using Base::woven, Base::shared;
  using typename Base::Sums;
  using typename Base::Unit;
  template <class V>
  using PerLane = device::PerThread<V, 32>;
  static constexpr int kUnit = Form::kUnit, kRing = 4;
  static_assert(Form::kRows == 16);
  static constexpr int kScalesAt = Form::kBytes, kZerosAt = kScalesAt + 32 * 16;
  static constexpr int kSlot = kZerosAt + (kZeros ? 32 * 8 : 0);
  static_assert(Base::kGroups == 4);

  template <class Product>
  DEVICE_FN static WovenColumns of(const Product& p) {
    return {{{static_cast<const uint8_t*>(p.weights), static_cast<const uint16_t*>(p.scales),
              static_cast<const uint8_t*>(p.zeros)},
             1,
             0,
             p.one_scale}};
  }
  // Zero points of a unit are a half where it has but one: the word around it.
  DEVICE_FN void ask(unsigned char* slot, int lane, int tile, int unit, int units) const {
    const size_t at = size_t(tile) * size_t(units) + size_t(unit), share = at * 8 + unsigned(lane) / 4;
    const uint8_t* const from = woven.codes + at * Form::kBytes + lane * 16;
    UNROLL for (int half = 0; half < 2; ++half)
        device::copy_async_or_zeros(slot + half * 512 + lane * 16, from + half * 512, true);
    if (shared) {
      device::copy_async<4>(slot + kScalesAt + lane * 16, woven.scales + share * 2);
      if (kZeros) device::copy_async<4>(slot + kZerosAt + lane * 8, woven.zeros + share / 2 * 4);
      return;
    }
    device::copy_async<16>(slot + kScalesAt + lane * 16, woven.scales + share * 8);
    if (kZeros) device::copy_async<8>(slot + kZerosAt + lane * 8, woven.zeros + share * 8);
  }
  DEVICE_FN void multiply(const device::Warp& warp, PerLane<Sums>& sums, unsigned char* slot, const T* row, int tile,
                          int unit, int units) const {
    PerLane<Unit> used;
    warp.apart([&](int lane) { read(used[lane], slot, lane, (tile * units + unit) * 8 + lane / 4); });
    Base::multiply(
        warp, sums, [&](int lane) -> Unit& { return used[lane]; }, row, unit);
  }
  DEVICE_FN void show(const device::Warp& warp, float* to, PerLane<Sums>& sums) const {
    warp.lanes([&](int lane) {
      Base::show(to, sums[lane], lane);
      sums[lane] = Sums{};
    });
  }

 private:
  DEVICE_FN void read(Unit& into, const unsigned char* slot, int lane, int share) const {
    using device::Granule;
    UNROLL for (int half = 0; half < 2; ++half) into.codes[half] =
        *reinterpret_cast<const Granule*>(slot + half * 512 + lane * 16);
    const auto* const of_groups = reinterpret_cast<const Granule*>(slot + kScalesAt + lane * 16);
    const auto* const of_pairs = reinterpret_cast<const device::Pack<uint32_t, 2>*>(slot + kZerosAt + lane * 8);
    if (shared) {
      into.scales[0] = of_groups->at[0];
      if (kZeros) into.zeros[0] = of_pairs->at[0] >> share % 2 * 16;
      return;
    }
    UNROLL for (int v = 0; v < 4; ++v) into.scales[v] = of_groups->at[v];
    if (kZeros) UNROLL for (int i = 0; i < 2; ++i) into.zeros[i] = of_pairs->at[i];
  }
};

}  // namespace encore::ops
