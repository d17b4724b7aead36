// Weights by one row, as the warps of a persistent kernel multiply them. A warp has a ring of slots in shared memory,
// into which it asks for units well before it needs them.
#pragma once
#include <bit>
#include <cmath>

#include "device/copy_async.h"
#include "device/warp.h"
#include "ops/quantize/woven_units.h"

namespace encore::ops {

// As they lie: [depth, columns] of halves. A unit is 16 columns of 128 rows, whose left and right halves lie one behind
// the other in a slot.
template <class T>
struct PlainColumns {
  using FragmentC = device::FragmentC;
  static constexpr int kUnit = 128, kColumns = 16, kRing = 2;
  static constexpr int kHalf = kUnit * 16, kSlot = 2 * kHalf;  // bytes
  static constexpr int kWays = 4;                              // in which products are summed up: mma takes its time
  struct Sums {
    FragmentC at[kWays];
  };
  template <class V>
  using PerLane = device::PerThread<V, 32>;

  const T* weights;
  int columns;

  template <class Product>
  DEVICE_FN static PlainColumns of(const Product& p) {
    return {static_cast<const T*>(p.weights), p.columns};
  }
  DEVICE_FN void ask(unsigned char* slot, int lane, int tile, int unit, int /*units*/) const {
    const T* const from =
        weights + size_t(unit * kUnit + lane / 2) * size_t(columns) + tile * kColumns + lane % 2 * (kColumns / 2);
    unsigned char* const to = slot + lane % 2 * kHalf + lane / 2 * 16;
    UNROLL for (int i = 0; i < kUnit; i += 16)
        device::copy_async_or_zeros(to + i * 16, from + size_t(i) * size_t(columns), true);
  }
  DEVICE_FN void multiply(const device::Warp& warp, PerLane<Sums>& sums, const unsigned char* slot, const T* row,
                          int /*tile*/, int unit, int /*units*/) const {
    const auto* const pairs = reinterpret_cast<const uint32_t*>(row + unit * kUnit);
    UNROLL for (int i = 0; i < kUnit / 16; ++i) {
      PerLane<device::FragmentA> left;
      warp.load_transposed(
          [&](int lane) { return slot + lane / 8 % 2 * kHalf + (16 * i + lane / 16 * 8 + lane % 8) * 16; },
          [&](int lane) { return left[lane].at; });
      // The row stands in all columns of the other factor.
      warp.template mma<T>([&](int lane) -> FragmentC& { return sums[lane].at[i % kWays]; },
                           [&](int lane) { return left[lane]; },
                           [&](int lane) {
                             const int at = 8 * i + lane % 4;
                             return device::FragmentB{{pairs[at], pairs[at + 4]}};
                           });
    }
  }
  // The sums of a tile, which are zeros from then on.
  DEVICE_FN void show(const device::Warp& warp, float* to, PerLane<Sums>& sums) const {
    warp.lanes([&](int lane) {
      const FragmentC(&of)[kWays] = sums[lane].at;
      if (lane % 4 == 0)
        UNROLL for (int r = 0; r < 2; ++r) to[lane / 4 + 8 * r] =
            (of[0].at[2 * r] + of[1].at[2 * r]) + (of[2].at[2 * r] + of[3].at[2 * r]);
      sums[lane] = Sums{};
    });
  }
};

// Woven ones of four bits.
template <class T, bool kZeros>
struct WovenColumns : WovenUnits<T, 4, 1, kZeros> {
  using Base = WovenUnits<T, 4, 1, kZeros>;
  using Form = typename Base::Form;
  using Base::scales, Base::zeros, Base::codes, Base::shared;
  using typename Base::Sums;
  using typename Base::Unit;
  template <class V>
  using PerLane = device::PerThread<V, 32>;
  static constexpr int kUnit = Form::kUnit, kColumns = Form::kRows, kRing = 4;
  static constexpr int kScalesAt = Form::kBytes, kZerosAt = kScalesAt + 32 * 16;
  static constexpr int kSlot = kZerosAt + (kZeros ? 32 * 8 : 0);
  static_assert(Base::kGroups == 4);

  template <class Product>
  DEVICE_FN static WovenColumns of(const Product& p) {
    return {{static_cast<const uint8_t*>(p.weights), static_cast<const uint16_t*>(p.scales),
             static_cast<const uint8_t*>(p.zeros), 1, 0, p.one_scale}};
  }
  // Zero points of a unit are a half where it has but one: the word around it.
  DEVICE_FN void ask(unsigned char* slot, int lane, int tile, int unit, int units) const {
    const size_t at = size_t(tile) * size_t(units) + size_t(unit), share = at * 8 + unsigned(lane) / 4;
    const uint8_t* const from = codes + at * Form::kBytes + lane * 16;
    UNROLL for (int half = 0; half < 2; ++half)
        device::copy_async_or_zeros(slot + half * 512 + lane * 16, from + half * 512, true);
    if (shared) {
      device::copy_async<4>(slot + kScalesAt + lane * 16, scales + share * 2);
      if (kZeros) device::copy_async<4>(slot + kZerosAt + lane * 8, zeros + share / 2 * 4);
      return;
    }
    device::copy_async<16>(slot + kScalesAt + lane * 16, scales + share * 8);
    if (kZeros) device::copy_async<8>(slot + kZerosAt + lane * 8, zeros + share * 8);
  }
  DEVICE_FN void multiply(const device::Warp& warp, PerLane<Sums>& sums, const unsigned char* slot, const T* row,
                          int tile, int unit, int units) const {
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
