// Attention of short sequences on tensor cores. A block has 16 queries of a head, and its warps share out the keys, so
// that all keys and values are on their way at once, straight into the registers of the lanes that need them. Each warp
// has an online softmax of its own; the partial results are combined at the end.
//
// Which value of a head is which place along the depth of a tile is free, as long as both factors agree, and so is
// which column of a result is which value. With g = lane / 4 and p = lane % 4, a lane has
//   queries  g, g + 8                            values 32 c + 8 p to + 7
//   keys     8 n + g                             values 32 c + 8 p to + 7
//   scores   of queries g, g + 8                 and keys 8 n + 2 p, 8 n + 2 p + 1
//   values   of keys 2 p, 2 p + 1, 2 p + 8, 2 p + 9 in 16    values g kPart to + kPart - 1 in each span
//   acc      of queries g, g + 8                 values 2 p kPart to + 2 kPart - 1 in each span
#include <algorithm>
#include <bit>
#include <utility>

#include "device/device.h"
#include "device/divide_small.h"
#include "device/mma_fragments.h"
#include "device/words.h"
#include "ops/attention/dense/attend_view.h"
#include "ops/attention/dense/group_softmax.h"
#include "ops/attention/dense/quads.h"
#include "ops/attention/dense/split_k.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::FragmentA;
using device::FragmentB;
using device::FragmentC;
using device::PerThread;
using device::Warp;

constexpr int kMostWarps = 8, kRows = 16;  // of a block: the latter are queries

// Heads of up to kHead values.
template <class T, int kHead>
struct AttendShort {
  static constexpr int kMaxThreads = 32 * kMostWarps;
  static constexpr int kKeys = kHead > 64 ? 16 : 32;  // that a warp has at a time
  static constexpr int kTiles = kKeys / 8, kSteps = kKeys / 16, kChunks = kHead / 32;
  static constexpr int kPart = kHead > 32 ? 8 : 4, kSpans = kHead / (8 * kPart);
  static constexpr int kAccRow = kHead + 4;  // from one row's accumulators to the next in shared memory
  using Eight = device::WordsOf<T, 8>;
  using Part = device::WordsOf<T, kPart>;

  struct Shared {
    float row_max[kMostWarps][kRows], row_sum[kMostWarps][kRows];
  };
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
  device::SmallDivider by_tiles, by_heads, by_group;
  int head_size, value_size;
  float scale, softcap;

  // Where a block is.
  struct Place {
    int64_t batch, head, kv_head;
    int first, rows;  // queries
  };
  DEVICE_FN Place place_of(int64_t block) const {
    int tile, head, in_group;
    const int batch = by_heads(by_tiles(int(block), tile), head);
    const int first = tile * kRows, left = visible.queries - first;
    return {batch, head, by_group(head, in_group), first, left < kRows ? left : kRows};
  }

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const Place place = place_of(b.index());
    const int length = visible.length(place.batch), warps = b.size() / 32;
    // Rows are in order of queries: later ones see no earlier keys.
    const int begin = visible.range(length, place.first).first;
    const int end = visible.range(length, place.first + place.rows - 1).end;
    device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
      PerThread<Queries, 32> queries;
      PerThread<State, 32> state;
      warp.apart([&](int lane) {
        load(queries[lane], place, length, lane);
        clear(state[lane]);
      });
      NO_UNROLL for (int key = begin + warp.index() * kKeys; key < end; key += warps * kKeys)
          attend_keys(warp, queries, state, place, key, end);
      store_partial(warp, state, s, b.template dynamic<float>(s) + warp.index() * kRows * kAccRow);
    });
    b.threads([&](int t, Shared& s) {
      constexpr int kPacks = kHead / 8;
      for (int i = t; i < kRows * kPacks; i += b.size()) {
        const int row = i / kPacks, column = i % kPacks * 8;
        if (row < place.rows && column < value_size) finish(s, b.template dynamic<float>(s), warps, place, row, column);
      }
    });
  }

 private:
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

  // A warp takes up the keys from `key` on. Zeros stand for those from `end` on.
  DEVICE_FN void attend_keys(const Warp& warp, PerThread<Queries, 32>& queries, PerThread<State, 32>& state,
                             const Place& place, int key, int end) const {
    PerThread<Keys, 32> keys;
    PerThread<Values, 32> values;
    PerThread<Scores, 32> scores;
    PerThread<Masked, 32> masked;
    PerThread<OfRows, 32> tile_max;
    warp.apart([&](int lane) {
      load(keys[lane], place, key, end, lane);
      load(values[lane], place, key, end, lane);
      scores[lane] = Scores{};
      if (visible.mask) load_mask(masked[lane], queries[lane], key, end, lane);
    });
    UNROLL for (int n = 0; n < kTiles; ++n) {
      UNROLL for (int c = 0; c < kChunks; ++c) {
        UNROLL for (int half = 0; half < 2; ++half)
            warp.template mma<T>([&](int lane) -> FragmentC& { return scores[lane].at[n]; },
                                 [&](int lane) {
                                   const Queries& of = queries[lane];
                                   return device::fragment_a(of.at[0][c], of.at[1][c], half);
                                 },
                                 [&](int lane) { return device::fragment_b(keys[lane].at[n][c], half); });
      }
    }
    warp.apart([&](int lane) {
      scale_and_cap(scores[lane]);
      if (visible.mask) mask(scores[lane], masked[lane]);
      mask_and_max(scores[lane], tile_max[lane], queries[lane], key, end, lane);
    });
    over_quads<2>(
        warp, [&](int lane) { return tile_max[lane].at; }, [](float a, float c) { return max_score(a, c); });
    PerThread<FragmentA[kSteps], 32> probs;
    warp.apart([&](int lane) { update(state[lane], scores[lane], tile_max[lane], probs[lane]); });
    UNROLL for (int step = 0; step < kSteps; ++step) {
      UNROLL for (int n = 0; n < kSpans; ++n) {
        UNROLL for (int j = 0; j < kPart; ++j) warp.template mma<T>(
            [&](int lane) -> FragmentC& { return state[lane].acc[n][j]; }, [&](int lane) { return probs[lane][step]; },
            [&](int lane) { return column_of(values[lane].at[step], n, j); });
      }
    }
  }
  DEVICE_FN void load(Keys& to, const Place& place, int key, int end, int lane) const {
    UNROLL for (int n = 0; n < kTiles; ++n) {
      const int one = key + 8 * n + lane / 4;
      const T* const from = k.at(place.batch, place.kv_head, one);
      UNROLL for (int c = 0; c < kChunks; ++c) {
        const int column = 32 * c + 8 * (lane % 4);
        to.at[n][c] = one < end && column < head_size ? device::load_words<8>(from + column) : Eight{};
      }
    }
  }
  DEVICE_FN void load(Values& to, const Place& place, int key, int end, int lane) const {
    UNROLL for (int step = 0; step < kSteps; ++step) {
      UNROLL for (int i = 0; i < 4; ++i) {
        const int one = key + 16 * step + device::k_of(lane, i);
        const T* const from = v.at(place.batch, place.kv_head, one);
        UNROLL for (int n = 0; n < kSpans; ++n) {
          const int column = 8 * kPart * n + kPart * (lane / 4);
          to.at[step][i][n] = one < end && column < value_size ? device::load_words<kPart>(from + column) : Part{};
        }
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
  DEVICE_FN static void store_partial(const Warp& warp, PerThread<State, 32>& state, Shared& s, float* acc) {
    PerThread<OfRows, 32> row_sums;
    warp.apart([&](int lane) { UNROLL for (int e = 0; e < 2; ++e) row_sums[lane].at[e] = state[lane].row_sum[e]; });
    over_quads<2>(
        warp, [&](int lane) { return row_sums[lane].at; }, [](float a, float c) { return a + c; });
    warp.apart([&](int lane) {
      UNROLL for (int e = 0; e < 2; ++e) {
        const int row = lane / 4 + 8 * e;
        if (lane % 4 == 0) {
          s.row_max[warp.index()][row] = state[lane].row_max[e] - kExpShift<T>;
          s.row_sum[warp.index()][row] = row_sums[lane].at[e];
        }
        UNROLL for (int n = 0; n < kSpans; ++n) {
          UNROLL for (int i = 0; i < 2 * kPart; i += 4) {
            device::Pack<float, 4> pack;
            UNROLL for (int c = 0; c < 4; ++c) pack.at[c] =
                state[lane].acc[n][(i + c) % kPart].at[2 * e + (i + c) / kPart];
            const int column = 8 * kPart * n + 2 * kPart * (lane % 4) + i;
            *reinterpret_cast<device::Pack<float, 4>*>(acc + row * kAccRow + column) = pack;
          }
        }
      }
    });
  }
  DEVICE_FN void finish(const Shared& s, const float* acc, int warps, const Place& place, int row, int column) const {
    const float sink = sinks.at(place.head);
    float row_max = sink;
    NO_UNROLL for (int w = 0; w < warps; ++w) row_max = max_score(row_max, s.row_max[w][row]);
    const float base = finite_max(row_max);
    float row_sum = exponential(sink - base);
    device::Pack<float, 8> combined{};
    NO_UNROLL for (int w = 0; w < warps; ++w) {
      const float correction = exponential(s.row_max[w][row] - base);
      const float* const own = acc + (w * kRows + row) * kAccRow + column;
      UNROLL for (int i = 0; i < 8; ++i) combined.at[i] += own[i] * correction;
      row_sum += s.row_sum[w][row] * correction;
    }
    device::Pack<T, 8> values;
    UNROLL for (int i = 0; i < 8; ++i) values.at[i] = T(normalised(combined.at[i], row_sum));
    device::store_whole(y.at(place.batch, place.head, place.first + row) + column, values);
  }
};

// Of a block: one for as many keys as it has at a time or, if the blocks are not all there at once then, for twice as
// many. None if they never are, or are many, or not of large heads: a library's kernel waits less often for rows that
// are read again.
int warps_for(int64_t blocks, int64_t keys, int64_t size, int64_t multiprocessors) {
  const bool large = size > 64;
  const int64_t at_once = large ? 16 : 32, room = size > 32 ? 8 : 16;  // warps of a multiprocessor
  const int64_t many = size > 32 ? 2 : room;                           // blocks of it
  const int64_t most = std::min<int64_t>((keys + at_once - 1) / at_once, kMostWarps);
  if (blocks <= multiprocessors * (room / most)) return int(most);
  const int64_t half = (most + 1) / 2;
  return !large && blocks <= multiprocessors * std::min(room / half, many) ? int(half) : 0;
}
int warps_for(const Context& context, const Attend& p) {
  const int64_t tiles = (p.queries + kRows - 1) / kRows;
  return warps_for(p.batch * p.heads * tiles, p.keys, std::max(p.head_size, p.value_size),
                   device::multiprocessors(context.stream().device()));
}

template <class T, int kHead>
void run(Context& context, const Attend& p) {
  using Kernel = AttendShort<T, kHead>;
  const int64_t tiles = (p.queries + kRows - 1) / kRows;
  const int warps = warps_for(context, p);
  const device::Blocks grid{.blocks = p.batch * p.heads * tiles,
                            .threads = 32 * warps,
                            .dynamic_bytes = warps * kRows * Kernel::kAccRow * int64_t(sizeof(float))};
  device::block_kernel<typename Kernel::Shared>(
      context.stream(), grid,
      Kernel{VisibleKeysView<T>(p, context.fault()), SinkView<T>(p), p.q, p.k, p.v, p.y,
             device::SmallDivider(int(tiles)), device::SmallDivider(int(p.heads)),
             device::SmallDivider(int(p.heads / p.kv_heads)), int(p.head_size), int(p.value_size), float(p.scale),
             float(p.softcap)});
}

}  // namespace

bool suits_short(const Context& context, const Attend& p) {
  constexpr int64_t kMostSize = 128, kMostKeys = 512, kMostQueries = int64_t(1) << 24;
  const int64_t size = std::max(p.head_size, p.value_size);
  if ((p.type != Type::f16 && p.type != Type::bf16) || p.scores.data || p.keys == 0 || p.keys > kMostKeys ||
      p.value_size == 0 || size > kMostSize || p.batch * p.heads > kMostQueries / p.queries ||
      warps_for(context, p) == 0)
    return false;
  for (const auto& [rows, count] :
       {std::pair{p.q, p.head_size}, {p.k, p.head_size}, {p.v, p.value_size}, {p.y, p.value_size}})
    if (!packs_fit<8, Half>(rows, count)) return false;
  return true;
}

void attend_short(Context& context, const Attend& problem) {
  const int64_t size = std::max(problem.head_size, problem.value_size);
  dispatch(TypeList<Half, BFloat16>{}, problem.type, [&]<class T> {
    if (size <= 32)
      run<T, 32>(context, problem);
    else if (size <= 64)
      run<T, 64>(context, problem);
    else
      run<T, 128>(context, problem);
  });
}

}  // namespace encore::ops
