// Units of woven weights by a few rows, as a warp multiplies them on tensor cores.
#pragma once
#include <utility>

#include "device/mma_fragments.h"
#include "device/unaligned_pack.h"
#include "ops/quantize/weave.h"

namespace encore::ops {

// From one row's sums of a tile to the next row's, so that lanes write to banks of their own.
inline constexpr int kTilePitch = 20;

// What a lane has of a unit.
template <int kBits>
struct WovenUnit {
  using Form = Weave<kBits>;
  static constexpr int kGroups = Form::kGroups;
  device::Granule codes[2];  // of the rows g and g + 8
  uint32_t scales[kGroups];  // of both rows; or the first is for all
  uint32_t zeros[kGroups / 2];

  // one_scale: a unit has but one.
  DEVICE_FN void load(const WovenCodes& woven, int64_t at, int lane, bool one_scale, bool has_zeros) {
    const auto* const from = reinterpret_cast<const device::Granule*>(woven.codes + at * Form::kBytes) + lane;
    codes[0] = from[0], codes[1] = from[32];
    const int64_t share = at * 8 + lane / 4;  // of both rows at once
    if (one_scale) {
      scales[0] = reinterpret_cast<const uint32_t*>(woven.scales)[share];
      if (has_zeros) zeros[0] = reinterpret_cast<const uint16_t*>(woven.zeros)[share];
      return;
    }
    const auto own = reinterpret_cast<const device::Pack<uint32_t, kGroups>*>(woven.scales)[share];
    UNROLL for (int v = 0; v < kGroups; ++v) scales[v] = own.at[v];
    if (!has_zeros) return;
    const auto own_zeros = reinterpret_cast<const device::Pack<uint32_t, kGroups / 2>*>(woven.zeros)[share];
    UNROLL for (int i = 0; i < kGroups / 2; ++i) zeros[i] = own_zeros.at[i];
  }
};

// For so many rows. kZeros: there are zero points.
template <class T, int kBits, int kMost, bool kZeros>
struct WovenUnits {
  using Form = Weave<kBits>;
  using FragmentA = device::FragmentA;
  using FragmentC = device::FragmentC;
  using Granule = device::Granule;
  template <class V>
  using PerLane = device::PerThread<V, 32>;
  static constexpr int kRows = 8, kTiles = (kMost + kRows - 1) / kRows;
  static constexpr int kNext = kMost == 1 ? 2 : 1;  // value of a FragmentC: one row has those of even columns alone
  // Units that a lane has under way, as many as registers have room for.
  static constexpr int kHeld = 4 - (kTiles == 2) - (kBits == 2 ? 1 + kZeros : 0);
  static constexpr int kGroups = Form::kGroups, kTaken = Form::kPart / 2;
  // Groups that are multiplied in turns, so that none waits for its own sums.
  static constexpr int kTurns = kBits == 2 ? 1 : kZeros || kTiles > 1 ? 2 : kGroups;
  using Unit = WovenUnit<kBits>;
  struct Sums {
    FragmentC at[kTiles];
  };

  WovenCodes woven;
  int count, pitch;  // rows, and from one to the next in shared memory
  bool shared;       // a unit has but one scale

  DEVICE_FN void load(Unit& into, int lane, int at) const { into.load(woven, at, lane, shared, kZeros); }
  // Adds the unit that used(lane) has, which is the rows' from `unit` on.
  template <class Used>
  DEVICE_FN void multiply(const device::Warp& warp, PerLane<Sums>& sums, Used used, const T* rows, int unit) const {
    UNROLL for (int v = 0; v < kGroups; v += kTurns) multiply(warp, sums, used, v, rows, unit);
  }

  DEVICE_FN void show(float* to, const Sums& sums, int lane) const {
    UNROLL for (int tile = 0; tile < kTiles; ++tile) {
      UNROLL for (int i = 0; i < 4; i += kNext) {
        const int row = tile * kRows + device::c_column(lane, i);
        if (row < count) to[row * kTilePitch + device::c_row(lane, i)] = sums.at[tile].at[i];
      }
    }
  }

 private:
  struct Turns {
    Numbers<T, kBits> numbers[kTurns][2];
    uint32_t right[kTurns][kTiles][kTaken];
    FragmentC sums[kTurns][kTiles];
  };

  // The zero point of a group, once for each half of a word; r: of the rows g, or g + 8.
  DEVICE_FN uint32_t zeros_of(const Unit& unit, int v, int r) const {
    if (!kZeros) return (1u << (kBits - 1)) * 0x10001u;
    return device::byte_pair(shared ? +unit.zeros[0] : +unit.zeros[v / 2], r + (shared ? 0 : v % 2 * 2));
  }

  // The groups from v on, kTurns of them.
  template <class Used>
  DEVICE_FN void multiply(const device::Warp& warp, PerLane<Sums>& sums, Used used, int v, const T* rows,
                          int unit) const {
    PerLane<Turns> turns;
    warp.lanes([&](int lane) {
      UNROLL for (int tile = 0; tile < kTiles; ++tile) {
        const int wanted = tile * kRows + lane / 4;
        const int row = wanted < count ? wanted : count - 1;  // lanes beyond the last row do as the last one does
        const T* const from = rows + row * pitch + unit * Form::kUnit + v * Form::kGroup + lane % 4 * Form::kPart;
        UNROLL for (int n = 0; n < kTurns; ++n) {
          UNROLL for (int i = 0; i < kTaken; i += 4) {
            const Granule four = *reinterpret_cast<const Granule*>(from + n * Form::kGroup + 2 * i);
            UNROLL for (int j = 0; j < 4; ++j) turns[lane].right[n][tile][i + j] = four.at[j];
          }
          turns[lane].sums[n][tile] = FragmentC{};
        }
      }
      UNROLL for (int n = 0; n < kTurns; ++n) {
        UNROLL for (int r = 0; r < 2; ++r) turns[lane].numbers[n][r] =
            Numbers<T, kBits>(zeros_of(used(lane), v + n, r));
      }
    });
    multiply(warp, turns, used, v, std::make_integer_sequence<int, kTaken / 2>{});
    warp.lanes([&](int lane) {
      UNROLL for (int n = 0; n < kTurns; ++n) {
        const Unit& unit = used(lane);
        const uint32_t scales = shared ? +unit.scales[0] : +unit.scales[v + n];
        const float low = float(std::bit_cast<T>(uint16_t(scales)));
        const float high = float(std::bit_cast<T>(uint16_t(scales >> 16)));
        UNROLL for (int tile = 0; tile < kTiles; ++tile) {
          UNROLL for (int i = 0; i < 4; i += kNext) sums[lane].at[tile].at[i] +=
              (i < 2 ? low : high) * turns[lane].sums[n][tile].at[i];
        }
      }
    });
  }
  template <class Used, int... kTwo>
  DEVICE_FN void multiply(const device::Warp& warp, PerLane<Turns>& turns, Used used, int v,
                          std::integer_sequence<int, kTwo...>) const {
    (multiply<2 * kTwo>(warp, turns, used, v), ...);
  }
  template <int kI, class Used>
  DEVICE_FN void multiply(const device::Warp& warp, PerLane<Turns>& turns, Used used, int v) const {
    UNROLL for (int n = 0; n < kTurns; ++n) {
      PerLane<FragmentA> left;
      UNROLL for (int tile = 0; tile < kTiles; ++tile)
          warp.template mma<T>([&](int lane) -> FragmentC& { return turns[lane].sums[n][tile]; },
                               [&](int lane) {
                                 if (tile == 0) left[lane] = fragment_a<kI>(turns[lane].numbers[n], used(lane), v + n);
                                 return left[lane];
                               },
                               [&](int lane) {
                                 const auto& right = turns[lane].right[n][tile];
                                 return device::FragmentB{{right[kI], right[kI + 1]}};
                               });
    }
  }
  template <int kI>
  DEVICE_FN static FragmentA fragment_a(const Numbers<T, kBits> (&by)[2], const Unit& unit, int v) {
    constexpr int kPair = kI % Form::kPairs;
    const int word = v * Form::kWords + kI / Form::kPairs;
    const uint32_t low = unit.codes[0].at[word], high = unit.codes[1].at[word];
    return {{by[0].template pair<kPair>(low), by[1].template pair<kPair>(high),  //
             by[0].template pair<kPair + 1>(low), by[1].template pair<kPair + 1>(high)}};
  }
};

}  // namespace encore::ops
