// The online softmax of a warp, whose scores mma makes: of 8 kTiles rows, with values that fill kSpans times
// 64. attend_grouped_decode.h tells which lane has what.
#pragma once
#include <bit>

#include "device/mma_fragments.h"
#include "ops/attention/dense/attend_view.h"

namespace encore::ops {

// By what exponentials are larger than they would be, as a logarithm: a half has more room above one than below.
template <class T>
inline constexpr float kExpShift = 0;
template <>
inline constexpr float kExpShift<device::Half> = 6.9314718f;  // 1024

template <class T, int kTiles, int kSpans>
struct GroupSoftmax {
  using FragmentC = device::FragmentC;
  static constexpr int kAccRow = 64 * kSpans + 8;  // from one row's accumulators to the next in shared memory
  struct Probs {
    uint32_t at[kTiles][2];  // of keys i and rows as scores have them, and then as products want them
  };
  struct OfRows {
    float at[kTiles][2];
  };

  FragmentC acc[kTiles][kSpans][4];
  float row_max[kTiles][2], row_sum[kTiles][2];

  DEVICE_FN void clear() {
    UNROLL for (int r = 0; r < kTiles; ++r) {
      UNROLL for (int n = 0; n < kSpans; ++n) { UNROLL for (int i = 0; i < 4; ++i) acc[r][n][i] = FragmentC{}; }
      UNROLL for (int e = 0; e < 2; ++e) {
        row_max[r][e] = kMaskedScore<float>;
        row_sum[r][e] = 0;
      }
    }
  }
  // Adds a tile of keys: its scores, of which `tile_max` has each lane's largest, and the values, of which
  // word(lane, key, span, i) is the pair i in the 64 of the span, of four keys that the lane has.
  template <class Scores>
  DEVICE_FN static void accumulate(const device::Warp& warp, device::PerThread<GroupSoftmax, 32>& state,
                                   device::PerThread<Scores, 32>& scores, device::PerThread<OfRows, 32>& tile_max,
                                   const auto& word) {
    device::PerThread<Probs, 32> probs;
    UNROLL for (int r = 0; r < kTiles; ++r) {
      UNROLL for (int e = 0; e < 2; ++e)
          warp.template reduce_columns<4>([&](int lane) -> float& { return tile_max[lane].at[r][e]; },
                                          [](float a, float c) { return max_score(a, c); });
    }
    warp.lanes([&](int lane) { state[lane].update(scores[lane].at, tile_max[lane], probs[lane]); });
    UNROLL for (int r = 0; r < kTiles; ++r) {
      UNROLL for (int e = 0; e < 2; ++e) warp.transpose([&](int lane) -> uint32_t& { return probs[lane].at[r][e]; });
    }
    UNROLL for (int n = 0; n < kSpans; ++n) {
      UNROLL for (int i = 0; i < 4; ++i) {
        UNROLL for (int r = 0; r < kTiles; ++r) {
          warp.template mma<T>([&](int lane) -> FragmentC& { return state[lane].acc[r][n][i]; },
                               [&](int lane) {
                                 return device::fragment_a(word(lane, 0, n, i), word(lane, 1, n, i),
                                                           word(lane, 2, n, i), word(lane, 3, n, i));
                               },
                               [&](int lane) {
                                 return device::FragmentB{{probs[lane].at[r][0], probs[lane].at[r][1]}};
                               });
        }
      }
    }
  }
  // Puts what a warp has into shared memory: for each row its maximum, its sum and its accumulators.
  DEVICE_FN static void store_partial(const device::Warp& warp, device::PerThread<GroupSoftmax, 32>& state,
                                      float* to_max, float* to_sum, float* to_acc) {
    UNROLL for (int r = 0; r < kTiles; ++r) {
      UNROLL for (int e = 0; e < 2; ++e) warp.template reduce_columns<4>(
          [&](int lane) -> float& { return state[lane].row_sum[r][e]; }, [](float a, float c) { return a + c; });
    }
    warp.lanes([&](int lane) { state[lane].store_partial(to_max, to_sum, to_acc, lane); });
  }

  // What all warps together have of a row, over `row_max`; their accumulators lie so far apart.
  template <int kMany>
  struct Combined {
    device::Pack<float, kMany> acc;
    float row_max, row_sum;
  };
  template <int kMany, int kWarps>
  DEVICE_FN static Combined<kMany> combine(const float (&warp_max)[kWarps][8 * kTiles],
                                           const float (&warp_sum)[kWarps][8 * kTiles], const float* acc, int row,
                                           float sink) {
    Combined<kMany> combined{{}, sink, 0};
    UNROLL for (int w = 0; w < kWarps; ++w) combined.row_max = max_score(combined.row_max, warp_max[w][row]);
    const float base = finite_max(combined.row_max);
    combined.row_sum = exponential(sink - base);
    UNROLL for (int w = 0; w < kWarps; ++w) {
      const float correction = exponential(warp_max[w][row] - base);
      const auto own = *reinterpret_cast<const device::Pack<float, kMany>*>(acc + w * 8 * kTiles * kAccRow);
      UNROLL for (int i = 0; i < kMany; ++i) combined.acc.at[i] += own.at[i] * correction;
      combined.row_sum += warp_sum[w][row] * correction;
    }
    return combined;
  }

 private:
  // The scores are in the first of the ways.
  template <int kWays>
  DEVICE_FN void update(const FragmentC (&scores)[kTiles][kWays], const OfRows& tile_max, Probs& probs) {
    UNROLL for (int r = 0; r < kTiles; ++r) {
      const FragmentC& scored = scores[r][0];
      float base[2], correction[2];
      UNROLL for (int e = 0; e < 2; ++e) {
        const float now = max_score(row_max[r][e], tile_max.at[r][e]);
        correction[e] = exponential(row_max[r][e] - finite_max(now));
        base[e] = finite_max(now) - kExpShift<T>;
        row_max[r][e] = now;
        row_sum[r][e] *= correction[e];
      }
      UNROLL for (int half = 0; half < 2; ++half) {
        const uint32_t pair = device::as_pair<T>(exponential(scored.at[2 * half] - base[0]),
                                                 exponential(scored.at[2 * half + 1] - base[1]));
        probs.at[r][half] = pair;
        // The sum is that of rounded probabilities, as they are multiplied: what rounding does to both cancels out.
        UNROLL for (int e = 0; e < 2; ++e) row_sum[r][e] += float(std::bit_cast<T>(uint16_t(pair >> 16 * e)));
      }
      UNROLL for (int n = 0; n < kSpans; ++n) {
        UNROLL for (int i = 0; i < 4; ++i) {
          UNROLL for (int c = 0; c < 4; ++c) acc[r][n][i].at[c] *= correction[c % 2];
        }
      }
    }
  }
  DEVICE_FN void store_partial(float* to_max, float* to_sum, float* to_acc, int lane) const {
    UNROLL for (int r = 0; r < kTiles; ++r) {
      UNROLL for (int e = 0; e < 2; ++e) {
        const int row = 8 * r + device::c_column(lane, e);
        UNROLL for (int n = 0; n < kSpans; ++n) {
          UNROLL for (int i = 0; i < 4; ++i) {
            const FragmentC& of = acc[r][n][i];
            *reinterpret_cast<device::Pack<float, 2>*>(to_acc + row * kAccRow + 64 * n + 8 * (lane / 4) + 2 * i) = {
                of.at[e], of.at[e + 2]};
          }
        }
        if (lane >= 4) continue;
        to_max[row] = row_max[r][e] - kExpShift<T>;
        to_sum[row] = row_sum[r][e];
      }
    }
  }
};

}  // namespace encore::ops
