// What a warp does in attention on tensor cores: 16 queries of a head meet some keys at a time, in an online softmax.
// Who derives from it brings keys and values to the lanes that need them.
//
// Which value of a head is which place along the depth of a tile is free, as long as both factors agree, and so is
// which column of a result is which value. With g = lane / 4 and p = lane % 4, a lane has
//   queries  g, g + 8                            values 32 c + 8 p to + 7
//   keys     8 n + g                             values 32 c + 8 p to + 7
//   scores   of queries g, g + 8                 and keys 8 n + 2 p, 8 n + 2 p + 1
//   values   of keys 2 p, 2 p + 1, 2 p + 8, 2 p + 9 in 16    values g kPart to + kPart - 1 in each span
//   acc      of queries g, g + 8                 values 2 p kPart to + 2 kPart - 1 in each span
#pragma once
#include <bit>

#include "device/device.h"
#include "device/divide_small.h"
#include "device/mma_fragments.h"
#include "device/words.h"
#include "ops/attention/dense/attend_view.h"
#include "ops/attention/dense/group_softmax.h"

namespace encore::ops {

using device::Block;
using device::FragmentA;
using device::FragmentB;
using device::FragmentC;
using device::PerThread;
using device::Warp;

// Heads of up to kHead values.
template <class T, int kHead>
struct AttendWarp {
  static constexpr int kRows = 16;                    // queries
  static constexpr int kKeys = kHead > 64 ? 16 : 32;  // that a warp has at a time
  static constexpr int kTiles = kKeys / 8, kSteps = kKeys / 16, kChunks = kHead / 32;
  static constexpr int kPart = kHead > 32 ? 8 : 4, kSpans = kHead / (8 * kPart);
  using Eight = device::WordsOf<T, 8>;
  using Part = device::WordsOf<T, kPart>;

  // What a lane has of its queries, and of the keys and values that its warp looks at.
  struct Queries {
    Eight at[2][kChunks];
    KeyRange range[2];
    int64_t mask[2];
  };
  struct Keys {
    Eight at[kTiles][kChunks];
  };
  struct Values {
    Part at[kSteps][4][kSpans];
  };
  struct Scores {
    FragmentC at[kTiles];
  };
  // Of the mask, as it lies in memory: it becomes numbers when all else that was asked for is there.
  struct Masked {
    uint16_t at[kTiles][4];
  };
  struct OfRows {
    float at[2];
  };
  struct State {
    FragmentC acc[kSpans][kPart];
    float row_max[2], row_sum[2];
  };

  VisibleKeysView<T> visible;
  SinkView<T> sinks;
  HeadView<const T> q, k, v;
  HeadView<T> y;
  int head_size, value_size;
  float scale, softcap;

  AttendWarp(const Attend& p, device::FaultRef fault)
      : visible(p, fault),
        sinks(p),
        q(p.q),
        k(p.k),
        v(p.v),
        y(p.y),
        head_size(int(p.head_size)),
        value_size(int(p.value_size)),
        scale(float(p.scale)),
        softcap(float(p.softcap)) {}

  // What a warp or its block has: `rows` queries from `first` on.
  struct Place {
    int64_t batch, head, kv_head;
    int first, rows;
  };
  DEVICE_FN void load(Queries& to, const Place& place, int length, int lane) const {
    UNROLL for (int e = 0; e < 2; ++e) {
      const int row = lane / 4 + 8 * e, query = place.first + (row < place.rows ? row : 0);
      const T* const from = q.at(place.batch, place.head, query);
      UNROLL for (int c = 0; c < kChunks; ++c) {
        const int column = 32 * c + 8 * (lane % 4);
        to.at[e][c] = column < head_size ? device::load_words<8>(from + column) : Eight{};
      }
      to.range[e] = visible.range(length, query);
      to.mask[e] = visible.mask_row(place.batch, place.head, query);
    }
  }
  DEVICE_FN static void clear(State& state) {
    UNROLL for (int n = 0; n < kSpans; ++n) { UNROLL for (int j = 0; j < kPart; ++j) state.acc[n][j] = FragmentC{}; }
    UNROLL for (int e = 0; e < 2; ++e) {
      state.row_max[e] = kMaskedScore<float>;
      state.row_sum[e] = 0;
    }
  }

  // A warp, whose queries and states begin at `own`, takes up the keys from `key` on. bring_keys(to, lane) and
  // bring_values(to, lane) bring them; from `end` on there are zeros.
  template <int kThreads>
  DEVICE_FN void attend_keys(const Warp& warp, PerThread<Queries, kThreads>& queries,
                             PerThread<State, kThreads>& state, int own, int key, int end, auto bring_keys,
                             auto bring_values) const {
    PerThread<Keys, 32> keys;
    PerThread<Values, 32> values;
    PerThread<Scores, 32> scores;
    PerThread<Masked, 32> masked;
    PerThread<OfRows, 32> tile_max;
    warp.apart([&](int lane) {
      bring_keys(keys[lane], lane);
      bring_values(values[lane], lane);
      scores[lane] = Scores{};
      if (visible.mask) load_mask(masked[lane], queries[own + lane], key, end, lane);
    });
    UNROLL for (int n = 0; n < kTiles; ++n) {
      UNROLL for (int c = 0; c < kChunks; ++c) {
        UNROLL for (int half = 0; half < 2; ++half)
            warp.template mma<T>([&](int lane) -> FragmentC& { return scores[lane].at[n]; },
                                 [&](int lane) {
                                   const Queries& of = queries[own + lane];
                                   return device::fragment_a(of.at[0][c], of.at[1][c], half);
                                 },
                                 [&](int lane) { return device::fragment_b(keys[lane].at[n][c], half); });
      }
    }
    warp.apart([&](int lane) {
      scale_and_cap(scores[lane]);
      if (visible.mask) mask(scores[lane], masked[lane]);
      mask_and_max(scores[lane], tile_max[lane], queries[own + lane], key, end, lane);
    });
    over_quads(warp, tile_max, [](float a, float c) { return max_score(a, c); });
    PerThread<FragmentA[kSteps], 32> probs;
    warp.apart([&](int lane) { update(state[own + lane], scores[lane], tile_max[lane], probs[lane]); });
    UNROLL for (int step = 0; step < kSteps; ++step) {
      UNROLL for (int n = 0; n < kSpans; ++n) {
        UNROLL for (int j = 0; j < kPart; ++j) warp.template mma<T>(
            [&](int lane) -> FragmentC& { return state[own + lane].acc[n][j]; },
            [&](int lane) { return probs[lane][step]; },
            [&](int lane) { return column_of(values[lane].at[step], n, j); });
      }
    }
  }
  // On its way beside the keys. What is out of a query's range need not be there.
  DEVICE_FN void load_mask(Masked& to, const Queries& of, int key, int end, int lane) const {
    const int last = end < visible.mask_keys ? end : visible.mask_keys;
    if (visible.boolean)
      load_mask(to, static_cast<const uint8_t*>(visible.mask), of, key, last, lane);
    else
      load_mask(to, static_cast<const uint16_t*>(visible.mask), of, key, last, lane);
  }
  template <class Bits>
  DEVICE_FN void load_mask(Masked& to, const Bits* from, const Queries& of, int key, int last, int lane) const {
    UNROLL for (int n = 0; n < kTiles; ++n) {
      UNROLL for (int i = 0; i < 4; ++i) {
        const int one = key + 8 * n + device::c_column(lane, i);
        to.at[n][i] = one < last ? uint16_t(from[of.mask[i / 2] + int64_t(one) * visible.by_key]) : uint16_t(0);
      }
    }
  }
  DEVICE_FN void mask(Scores& scores, const Masked& masked) const {
    const bool boolean = visible.boolean;
    UNROLL for (int n = 0; n < kTiles; ++n) {
      UNROLL for (int i = 0; i < 4; ++i) {
        const uint16_t bits = masked.at[n][i];
        const float more = boolean ? (bits ? 0.f : kMaskedScore<float>) : float(std::bit_cast<T>(bits));
        scores.at[n].at[i] = more == kMaskedScore<float> ? more : scores.at[n].at[i] + more;
      }
    }
  }
  DEVICE_FN void scale_and_cap(Scores& scores) const {
    UNROLL for (int n = 0; n < kTiles; ++n) { UNROLL for (int i = 0; i < 4; ++i) scores.at[n].at[i] *= scale; }
    if (!(softcap > 0)) return;
    UNROLL for (int n = 0; n < kTiles; ++n) {
      UNROLL for (int i = 0; i < 4; ++i) scores.at[n].at[i] = capped(scores.at[n].at[i], softcap);
    }
  }
  // Masks the keys that a query does not see, and finds each lane's maxima.
  DEVICE_FN static void mask_and_max(Scores& scores, OfRows& tile_max, const Queries& of, int key, int end, int lane) {
    UNROLL for (int e = 0; e < 2; ++e) tile_max.at[e] = kMaskedScore<float>;
    UNROLL for (int n = 0; n < kTiles; ++n) {
      UNROLL for (int i = 0; i < 4; ++i) {
        const int e = i / 2, one = key + 8 * n + device::c_column(lane, i);
        float& score = scores.at[n].at[i];
        if (one >= end || one < of.range[e].first || one >= of.range[e].end) score = kMaskedScore<float>;
        tile_max.at[e] = max_score(tile_max.at[e], score);
      }
    }
  }
  // The online softmax: what was added up is corrected to the new maximum, and the scores become unnormalised
  // probabilities, the left factor of a product with the values.
  DEVICE_FN static void update(State& state, const Scores& scores, const OfRows& tile_max, FragmentA (&probs)[kSteps]) {
    float base[2], correction[2];
    UNROLL for (int e = 0; e < 2; ++e) {
      const float now = max_score(state.row_max[e], tile_max.at[e]);
      correction[e] = exponential(state.row_max[e] - finite_max(now));
      base[e] = finite_max(now) - kExpShift<T>;
      state.row_max[e] = now;
      state.row_sum[e] *= correction[e];
    }
    UNROLL for (int n = 0; n < kSpans; ++n) {
      UNROLL for (int j = 0; j < kPart; ++j) {
        UNROLL for (int i = 0; i < 4; ++i) state.acc[n][j].at[i] *= correction[i / 2];
      }
    }
    UNROLL for (int n = 0; n < kTiles; ++n) {
      UNROLL for (int e = 0; e < 2; ++e) {
        const uint32_t pair = device::as_pair<T>(exponential(scores.at[n].at[2 * e] - base[e]),
                                                 exponential(scores.at[n].at[2 * e + 1] - base[e]));
        probs[n / 2].at[n % 2 * 2 + e] = pair;
        // The sum is that of rounded probabilities, as they are multiplied: what rounding does to both cancels out.
        UNROLL for (int i = 0; i < 2; ++i) state.row_sum[e] += float(std::bit_cast<T>(uint16_t(pair >> 16 * i)));
      }
    }
  }
  // Value j of a lane's part of the rows of 16 keys.
  DEVICE_FN static FragmentB column_of(const Part (&rows)[4][kSpans], int n, int j) {
    uint32_t words[4];
    UNROLL for (int i = 0; i < 4; ++i) words[i] = rows[i][n].at[j / 2];
    return j % 2 == 0 ? FragmentB{{device::low_halves(words[0], words[1]), device::low_halves(words[2], words[3])}}
                      : FragmentB{{device::high_halves(words[0], words[1]), device::high_halves(words[2], words[3])}};
  }
  // Lanes that have the same rows.
  template <class Op>
  DEVICE_FN static void over_quads(const Warp& warp, PerThread<OfRows, 32>& rows, Op op) {
    UNROLL for (int mask = 1; mask < 4; mask *= 2) {
      PerThread<OfRows, 32> others;
      warp.lanes([&](int lane) { others[lane] = rows[lane]; });
      warp.template exchange<2>(mask, [&](int lane) { return others[lane].at; });
      warp.apart([&](int lane) {
        UNROLL for (int e = 0; e < 2; ++e) rows[lane].at[e] = op(rows[lane].at[e], others[lane].at[e]);
      });
    }
  }
};

}  // namespace encore::ops
