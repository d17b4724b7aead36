// The softmax that a warp keeps up as tile products bring it scores: of 8 kTiles rows, whose values fill kSpans times
// 64. attend_grouped_decode.h tells which lane has what.
#pragma once
#include <bit>

#include "device/tile_parts.h"
#include "ops/attention/dense/attend_view.h"

namespace encore::ops {

// How far powers are raised above one, as a logarithm: a half has more room there than it has below.
template <class T>
inline constexpr float kLift = 0;
template <>
inline constexpr float kLift<device::Half> = 6.9314718f;  // 1024

template <class T, int kTiles, int kSpans>
struct GroupSoftmax {
  using SumTile = device::SumTile;
  static constexpr int kSumsRow = 64 * kSpans + 8;  // of a row's sums in shared memory
  struct Powers {
    uint32_t at[kTiles][2];  // of keys i and rows as scores have them, and then as products want them
  };
  struct OfRows {
    float at[kTiles][2];
  };

  SumTile sums[kTiles][kSpans][4];
  float top[kTiles][2], total[kTiles][2];

  DEVICE_FN void clear() {
    UNROLL for (int r = 0; r < kTiles; ++r) {
      UNROLL for (int n = 0; n < kSpans; ++n) { UNROLL for (int i = 0; i < 4; ++i) sums[r][n][i] = SumTile{}; }
      UNROLL for (int e = 0; e < 2; ++e) {
        top[r][e] = kUnseen<float>;
        total[r][e] = 0;
      }
    }
  }
  // A warp takes up a tile of keys: its scores, of which `tops` are each lane's largest, and the values, of which
  // word(lane, key, span, i) is the pair i in the 64 of the span, of four keys that the lane has.
  template <class Scores>
  DEVICE_FN static void take(const device::Warp& warp, device::PerThread<GroupSoftmax, 32>& state,
                             device::PerThread<Scores, 32>& scores, device::PerThread<OfRows, 32>& tops,
                             const auto& word) {
    device::PerThread<Powers, 32> powers;
    UNROLL for (int r = 0; r < kTiles; ++r) {
      UNROLL for (int e = 0; e < 2; ++e) warp.template reduce_columns<4>(
          [&](int lane) -> float& { return tops[lane].at[r][e]; }, [](float a, float c) { return larger_score(a, c); });
    }
    warp.lanes([&](int lane) { state[lane].raise(scores[lane].at, tops[lane], powers[lane]); });
    UNROLL for (int r = 0; r < kTiles; ++r) {
      UNROLL for (int e = 0; e < 2; ++e) warp.transpose([&](int lane) -> uint32_t& { return powers[lane].at[r][e]; });
    }
    UNROLL for (int n = 0; n < kSpans; ++n) {
      UNROLL for (int i = 0; i < 4; ++i) {
        UNROLL for (int r = 0; r < kTiles; ++r) {
          warp.template multiply<T>([&](int lane) -> SumTile& { return state[lane].sums[r][n][i]; },
                                    [&](int lane) {
                                      return device::left_of(word(lane, 0, n, i), word(lane, 1, n, i),
                                                             word(lane, 2, n, i), word(lane, 3, n, i));
                                    },
                                    [&](int lane) {
                                      return device::RightTile{{powers[lane].at[r][0], powers[lane].at[r][1]}};
                                    });
        }
      }
    }
  }
  // Puts what a warp has into shared memory: for each row its top, its total and its sums.
  DEVICE_FN static void show(const device::Warp& warp, device::PerThread<GroupSoftmax, 32>& state, float* to_top,
                             float* to_total, float* to_sums) {
    UNROLL for (int r = 0; r < kTiles; ++r) {
      UNROLL for (int e = 0; e < 2; ++e) warp.template reduce_columns<4>(
          [&](int lane) -> float& { return state[lane].total[r][e]; }, [](float a, float c) { return a + c; });
    }
    warp.lanes([&](int lane) { state[lane].show(to_top, to_total, to_sums, lane); });
  }

  // A row's sums of neighbouring values as all warps together have them, whose are so far apart; with powers of the
  // base of `top`.
  template <int kMany>
  struct Joined {
    device::Pack<float, kMany> sums;
    float top, total;
  };
  template <int kMany, int kWarps>
  DEVICE_FN static Joined<kMany> join(const float (&tops)[kWarps][8 * kTiles],
                                      const float (&totals)[kWarps][8 * kTiles], const float* sums, int row,
                                      float sink) {
    Joined<kMany> joined{{}, sink, 0};
    UNROLL for (int w = 0; w < kWarps; ++w) joined.top = larger_score(joined.top, tops[w][row]);
    const float base = base_of(joined.top);
    joined.total = exponential(sink - base);
    UNROLL for (int w = 0; w < kWarps; ++w) {
      const float shrink = exponential(tops[w][row] - base);
      const auto own = *reinterpret_cast<const device::Pack<float, kMany>*>(sums + w * 8 * kTiles * kSumsRow);
      UNROLL for (int i = 0; i < kMany; ++i) joined.sums.at[i] += own.at[i] * shrink;
      joined.total += totals[w][row] * shrink;
    }
    return joined;
  }

 private:
  // `tops` are those of the tile, of which the scores are in the first of the ways.
  template <int kWays>
  DEVICE_FN void raise(const SumTile (&scores)[kTiles][kWays], const OfRows& tops, Powers& powers) {
    UNROLL for (int r = 0; r < kTiles; ++r) {
      const SumTile& scored = scores[r][0];
      float base[2], shrink[2];
      UNROLL for (int e = 0; e < 2; ++e) {
        const float now = larger_score(top[r][e], tops.at[r][e]);
        shrink[e] = exponential(top[r][e] - base_of(now));
        base[e] = base_of(now) - kLift<T>;
        top[r][e] = now;
        total[r][e] *= shrink[e];
      }
      UNROLL for (int half = 0; half < 2; ++half) {
        const uint32_t pair = device::as_pair<T>(exponential(scored.at[2 * half] - base[0]),
                                                 exponential(scored.at[2 * half + 1] - base[1]));
        powers.at[r][half] = pair;
        // The total is that of the powers as they are multiplied: what rounding does to both cancels out.
        UNROLL for (int e = 0; e < 2; ++e) total[r][e] += float(std::bit_cast<T>(uint16_t(pair >> 16 * e)));
      }
      UNROLL for (int n = 0; n < kSpans; ++n) {
        UNROLL for (int i = 0; i < 4; ++i) { UNROLL for (int c = 0; c < 4; ++c) sums[r][n][i].at[c] *= shrink[c % 2]; }
      }
    }
  }
  DEVICE_FN void show(float* to_top, float* to_total, float* to_sums, int lane) const {
    UNROLL for (int r = 0; r < kTiles; ++r) {
      UNROLL for (int e = 0; e < 2; ++e) {
        const int row = 8 * r + device::sum_column(lane, e);
        UNROLL for (int n = 0; n < kSpans; ++n) {
          UNROLL for (int i = 0; i < 4; ++i) {
            const SumTile& of = sums[r][n][i];
            *reinterpret_cast<device::Pack<float, 2>*>(to_sums + row * kSumsRow + 64 * n + 8 * (lane / 4) + 2 * i) = {
                of.at[e], of.at[e + 2]};
          }
        }
        if (lane >= 4) continue;
        to_top[row] = top[r][e] - kLift<T>;
        to_total[row] = total[r][e];
      }
    }
  }
};

}  // namespace encore::ops
