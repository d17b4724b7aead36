// A row by weights as they lie: [depth, columns] of halves.
#pragma once
#include "device/read_if.h"
#include "device/warp.h"
#include "ops/quantize/woven_units.h"

namespace encore::ops {

// A unit is 16 columns of 128 rows: a lane has eight columns of eight rows.
template <class T>
struct PlainColumns {
  using Granule = device::Granule;
  template <class V>
  using PerLane = device::PerThread<V, 32>;
  static constexpr int kUnit = 128, kColumns = 16, kHeld = 2;
  static constexpr int kSide = 8, kLanes = kColumns / kSide;  // lanes side by side
  struct Unit {
    Granule rows[kSide];
  };
  struct Sums {
    float at[kSide];
  };

  const T* weights;
  int columns;

  template <class Product>
  DEVICE_FN static PlainColumns of(const Product& p) {
    return {static_cast<const T*>(p.weights), p.columns};
  }
  DEVICE_FN void load(Unit& into, int lane, int tile, int unit, int /*units*/) const {
    const T* const from = weights + size_t(unit * kUnit + lane / kLanes * kSide) * size_t(columns) + tile * kColumns +
                          lane % kLanes * kSide;
    UNROLL for (int i = 0; i < kSide; ++i) device::read_if<true>(true, into.rows[i], from + size_t(i) * columns);
  }
  template <class Used>
  DEVICE_FN void multiply(const device::Warp& warp, PerLane<Sums>& sums, Used used, const T* row, int unit) const {
    warp.apart([&](int lane) {
      const auto x = *reinterpret_cast<const device::Pack<T, kSide>*>(row + unit * kUnit + lane / kLanes * kSide);
      UNROLL for (int i = 0; i < kSide; ++i) {
        const float factor = float(x.at[i]);
        const auto weight = std::bit_cast<device::Pack<T, kSide>>(used(lane).rows[i]);
        UNROLL for (int j = 0; j < kSide; ++j) sums[lane].at[j] = fmaf(factor, float(weight.at[j]), sums[lane].at[j]);
      }
    });
  }
  DEVICE_FN void show(const device::Warp& warp, float* to, PerLane<Sums>& sums) const {
    UNROLL for (int j = 0; j < kSide; ++j) warp.template reduce_columns<kLanes>(
        [&](int lane) -> float& { return sums[lane].at[j]; }, [](float a, float b) { return a + b; });
    warp.lanes([&](int lane) {
      if (lane < kLanes) UNROLL for (int j = 0; j < kSide; ++j) to[lane * kSide + j] = sums[lane].at[j];
      sums[lane] = Sums{};
    });
  }
};

// The same of woven weights of four bits.
template <class T, bool kZeros>
struct WovenColumns : WovenUnits<T, 4, 1, kZeros> {
  using Base = WovenUnits<T, 4, 1, kZeros>;
  using typename Base::Sums;
  using typename Base::Unit;
  static constexpr int kUnit = Base::Form::kUnit, kColumns = Base::Form::kRows;

  template <class Product>
  DEVICE_FN static WovenColumns of(const Product& p) {
    return {{static_cast<const uint8_t*>(p.weights), static_cast<const uint16_t*>(p.scales),
             static_cast<const uint8_t*>(p.zeros), 1, 0, p.one_scale}};
  }
  DEVICE_FN void load(Unit& into, int lane, int tile, int unit, int units) const {
    Base::load(into, lane, tile * units + unit);
  }
  DEVICE_FN void show(const device::Warp& warp, float* to, device::PerThread<Sums, 32>& sums) const {
    warp.lanes([&](int lane) {
      Base::show(to, sums[lane], lane);
      sums[lane] = Sums{};
    });
  }
};

}  // namespace encore::ops
