// Weights by one row, as the warps of a persistent kernel multiply them. A warp has a ring of slots in shared memory,
// into which it asks for units well before it needs them; a lane reads no more of a slot than it asked for itself.
#pragma once
#include <bit>
#include <cmath>

#include "device/copy_async.h"
#include "device/warp.h"
#include "ops/quantize/woven_units.h"

namespace encore::ops {

// As they lie: [depth, columns] of halves. A unit is 16 columns of 128 rows, a lane has eight columns of eight rows.
template <class T>
struct PlainColumns {
  static constexpr int kUnit = 128, kColumns = 16, kRing = 2;
  static constexpr int kSide = 8, kLanes = kColumns / kSide;  // lanes side by side
  static constexpr int kRow = 32 * 16, kSlot = kSide * kRow;  // bytes of a warp's
  struct Sums {
    float at[kSide];
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
    const int row = unit * kUnit + lane / kLanes * kSide;
    const T* const from = weights + size_t(row) * size_t(columns) + tile * kColumns + lane % kLanes * kSide;
    UNROLL for (int i = 0; i < kSide; ++i)
        device::copy_async_or_zeros(slot + i * kRow + lane * 16, from + size_t(i) * size_t(columns), true);
  }
  DEVICE_FN void multiply(const device::Warp& warp, PerLane<Sums>& sums, const unsigned char* slot, const T* row,
                          int /*tile*/, int unit, int /*units*/) const {
    warp.apart([&](int lane) {
      using Pack = device::Pack<T, kSide>;
      const auto x = *reinterpret_cast<const Pack*>(row + unit * kUnit + lane / kLanes * kSide);
      UNROLL for (int i = 0; i < kSide; ++i) {
        const float factor = float(x.at[i]);
        const auto weight = *reinterpret_cast<const Pack*>(slot + i * kRow + lane * 16);
        UNROLL for (int j = 0; j < kSide; ++j) sums[lane].at[j] = fmaf(factor, float(weight.at[j]), sums[lane].at[j]);
      }
    });
  }
  // The sums of a tile, which are zeros from then on.
  DEVICE_FN void show(const device::Warp& warp, float* to, PerLane<Sums>& sums) const {
    UNROLL for (int j = 0; j < kSide; ++j) warp.template reduce_columns<kLanes>(
        [&](int lane) -> float& { return sums[lane].at[j]; }, [](float a, float b) { return a + b; });
    warp.lanes([&](int lane) {
      if (lane < kLanes) UNROLL for (int j = 0; j < kSide; ++j) to[lane * kSide + j] = sums[lane].at[j];
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
