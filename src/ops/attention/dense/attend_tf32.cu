// A block has rows of queries, whose values its warps have in registers. Tiles of keys and values come into shared
// memory, some of them ahead. Warps share out rows, or the keys of a tile, or both; each has an online softmax of its
// own, and those of the same rows are combined at the end.
//
// Which value of a head is which place along the depth of a tile is free, as long as both factors agree, and so is
// which column of a result is which value. With g = lane / 4 and p = lane % 4, a lane has
//   queries  g, g + 8 in 16             values 16 c + 4 p to + 3
//   keys     8 n + g                    values 16 c + 4 p to + 3
//   scores   of queries g, g + 8        and keys 8 n + 2 p, 8 n + 2 p + 1
//   values   of keys 8 n + 2 p, 8 n + 2 p + 1    values 32 s + 4 g to + 3
//   acc      of queries g, g + 8        values 32 s + 8 p to + 7
#include "ops/attention/dense/attend_tf32.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "device/copy_async.h"
#include "device/device.h"
#include "device/divide_small.h"
#include "device/mma_fragments.h"
#include "device/mma_tf32.h"
#include "ops/attention/dense/attend_view.h"
#include "ops/attention/dense/quads.h"
#include "ops/attention/dense/split_k.h"
#include "ops/attention/dense/tf32_ways.h"

namespace encore::ops {
namespace {

using device::Block;
using device::FragmentA;
using device::FragmentB;
using device::FragmentC;
using device::Granule;
using device::PerThread;
using device::Warp;

template <class Warps>
struct AttendTf32 {
  static constexpr int kMaxThreads = Warps::kMaxThreads, kThreads = Warps::kThreads, kStages = Warps::kStages;
  static constexpr int kRows = Warps::kRows, kKeys = Warps::kKeys, kKeyWarps = Warps::kKeyWarps;
  static constexpr int kRowTiles = Warps::kRowTiles, kKeyTiles = Warps::kWarpKeys / 8;
  static constexpr int kDepths = Warps::kHead / 16, kSpans = Warps::kHead / 32;
  static constexpr int kRowGranules = Warps::kHead / kInGranule;
  static constexpr bool kAsksAhead = kRowTiles == 1;          // for the mask, where registers are left
  static constexpr bool kRoundsAhead = Warps::kRowWarps > 1;  // keys and values, as several warps read them
  static constexpr int kTileGranules = kKeys * kRowGranules;  // of the keys of a stage, or of its values
  static constexpr int kAccRow = Warps::kAccRow;
  static constexpr int kApart = kThreads / kRowGranules;  // rows of a stage that a thread asks for

  struct Shared {
    float row_max[kKeyWarps][kRows], row_sum[kKeyWarps][kRows];
  };
  static_assert(sizeof(Shared) == Warps::kRowBytes);
  struct OfRows {
    float at[2 * kRowTiles];  // rows g + 8 i
  };
  // What a lane has of its queries.
  struct State {
    Granule queries[2 * kRowTiles][kDepths];
    FragmentC acc[kRowTiles][kSpans][4];
    OfRows row_max, row_sum;
  };
  struct Scores {
    FragmentC at[kRowTiles][kKeyTiles];
  };
  struct Keys {
    Granule at[kKeyTiles];
  };
  struct Values {
    Granule at[2];
  };
  using States = PerThread<State, kThreads>;

  VisibleKeysView<float> visible;
  FoldedRows fold;
  SinkView<float> sinks;
  HeadView<const float> q, k, v;
  HeadView<float> y;
  device::SmallDivider by_tiles, by_kv_heads;
  int head_size, value_size;
  float scale, softcap;
  Blind blind;
  bool aligned;  // y

  // Where a block is.
  struct Place {
    int batch, kv_head, first, rows;
  };
  // Neighbouring blocks share keys; those with the last queries, which see most keys, come first.
  DEVICE_FN Place place_of(int64_t block) const {
    int tile, kv_head;
    const int batch = by_kv_heads(by_tiles(int(block), tile), kv_head);
    const int first = (by_tiles.divisor() - 1 - tile) * kRows, left = fold.rows - first;
    return {batch, kv_head, first, left < kRows ? left : kRows};
  }
  // Of a lane's row i; one that is there.
  DEVICE_FN static int row_of(const Place& place, int first, int lane, int i) {
    const int row = first + lane / 4 + 8 * i;
    return row < place.rows ? row : 0;
  }
  DEVICE_FN int query(const Place& place, int row, int& head) const {
    const int of_row = fold.query(place.first + row, head);
    head += place.kv_head * fold.group.divisor();
    return of_row;
  }
  DEVICE_FN KeyRange range(const Place& place, int length, int row) const {
    int head;
    return visible.range(length, query(place, row, head));
  }

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const Place place = place_of(b.index());
    const int length = visible.length(place.batch);
    // Rows are in order of queries: later ones see no earlier keys.
    const int begin = range(place, length, 0).first, end = range(place, length, place.rows - 1).end;
    const int tiles = begin < end ? (end - begin + kKeys - 1) / kKeys : 0;
    States states;
    b.threads([&](int t, Shared& s) {
      UNROLL for (int i = 0; i < kStages; ++i) {
        if (i < tiles) load(stage(b, s, i), place, begin + i * kKeys, end, t);
        device::end_group_of_copies();
      }
      load(states[t], place, t);
      if (tiles > 0) await<kStages - 1>(stage(b, s, 0), t);
    });
    NO_UNROLL for (int tile = 0; tile < tiles; ++tile) {
      device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
        // Where the tile before this one was, there is room.
        const int ahead = tile + kStages - 1;
        if (tile > 0)
          warp.apart([&](int lane) {
            if (ahead < tiles) load(stage(b, s, ahead), place, begin + ahead * kKeys, end, thread(warp, lane));
            device::end_group_of_copies();
          });
        attend_keys(warp, states, place, length, stage(b, s, tile), begin + tile * kKeys, end);
        warp.apart([&](int lane) {
          if (tile + 1 < tiles) await<kStages - 2>(stage(b, s, tile + 1), thread(warp, lane));
        });
      });
    }
    device::for_each_warp(
        b, [&](const Warp& warp, Shared& s) { store_partial(warp, states, s, b.template dynamic<float>(s)); });
    b.threads([&](int t, Shared& s) {
      for (int i = t; i < kRows * kRowGranules; i += kThreads) {
        const int row = i / kRowGranules, column = i % kRowGranules * kInGranule;
        if (row < place.rows && column < value_size) finish(s, b.template dynamic<float>(s), place, row, column);
      }
    });
  }

 private:
  DEVICE_FN static int thread(const Warp& warp, int lane) { return 32 * warp.index() + lane; }
  DEVICE_FN static int first_row(int warp) { return warp % Warps::kRowWarps * Warps::kWarpRows; }
  DEVICE_FN static int key_warp(int warp) { return warp / Warps::kRowWarps; }
  DEVICE_FN static Granule* stage(const Block<Shared>& b, Shared& s, int tile) {
    return b.template dynamic<Granule>(s) + tile % kStages * (2 * kTileGranules);
  }
  // Where a granule of a tile's row is: neighbouring lanes, which read those of neighbouring rows, find them in banks
  // of their own, whether rows are keys or values.
  DEVICE_FN static int place_in(int row, int granule) {
    return row * kRowGranules + (granule ^ (row % 2 * 4) ^ (row / 2 % 4 * 2));
  }

  DEVICE_FN void load(Granule* to, const Place& place, int key, int end, int t) const {
    load(to, k.at(place.batch, place.kv_head, key), k.row, head_size, end - key, t);
    load(to + kTileGranules, v.at(place.batch, place.kv_head, key), v.row, value_size, end - key, t);
  }
  DEVICE_FN static void load(Granule* to, const float* from, int64_t stride, int size, int rows, int t) {
    const int first = t / kRowGranules, granule = t % kRowGranules;
    from += first * stride + granule * kInGranule;
    const bool is_there = granule * kInGranule < size;
    UNROLL for (int row = 0; row < kKeys; row += kApart) {
      device::copy_async_or_zeros(to + place_in(first + row, granule), from + row * stride,
                                  is_there && first + row < rows);
    }
  }
  // Until what the thread has asked for of the stage is there: all but the latest kMany groups.
  template <int kMany>
  DEVICE_FN static void await(Granule* of, int t) {
    device::wait_for_copies_before<kMany>();
    if constexpr (kRoundsAhead) {
      UNROLL for (int row = 0; row < 2 * kKeys; row += kApart) {
        Granule& own = of[place_in(t / kRowGranules + row, t % kRowGranules)];
        own = device::as_tf32(own);
      }
    }
  }
  DEVICE_FN void load(State& to, const Place& place, int t) const {
    const int lane = t % 32;
    UNROLL for (int i = 0; i < 2 * kRowTiles; ++i) {
      int head;
      const int one = query(place, row_of(place, first_row(t / 32), lane, i), head);
      const float* const from = q.at(place.batch, head, one);
      UNROLL for (int c = 0; c < kDepths; ++c) {
        const int column = 16 * c + kInGranule * (lane % 4);
        to.queries[i][c] =
            column < head_size ? device::as_tf32(device::load_words<kInGranule>(from + column)) : Granule{};
      }
      to.row_max.at[i] = kMaskedScore<float>;
      to.row_sum.at[i] = 0;
    }
    UNROLL for (int r = 0; r < kRowTiles; ++r) {
      UNROLL for (int n = 0; n < kSpans; ++n) { UNROLL for (int j = 0; j < 4; ++j) to.acc[r][n][j] = FragmentC{}; }
    }
  }

  // The warp's part of the tile's keys, the first of which is given.
  DEVICE_FN void attend_keys(const Warp& warp, States& states, const Place& place, int length, const Granule* tile,
                             int key, int end) const {
    const int first = key_warp(warp.index()) * Warps::kWarpKeys, row = first_row(warp.index());
    key += first;
    if (row >= place.rows) return;
    // A tile that no row sees is left out; where each row sees all of it, nothing is to be compared.
    const int last = row + Warps::kWarpRows < place.rows ? row + Warps::kWarpRows : place.rows;
    const KeyRange of_first = range(place, length, row), of_last = range(place, length, last - 1);
    if (key >= of_last.end || key + Warps::kWarpKeys <= of_first.first) return;
    const bool all_see = key >= of_last.first && key + Warps::kWarpKeys <= of_first.end;
    const auto state = [&](int lane) -> State& { return states[thread(warp, lane)]; };
    PerThread<Scores, 32> scores, added;
    const auto ask_for_mask = [&](int lane) { load_mask(added[lane], place, row, key, end, lane); };
    if (kAsksAhead && visible.mask) warp.apart(ask_for_mask);
    warp.apart([&](int lane) { scores[lane] = Scores{}; });
    UNROLL for (int c = 0; c < kDepths; ++c) {
      PerThread<Keys, 32> keys;
      warp.apart([&](int lane) {
        UNROLL for (int n = 0; n < kKeyTiles; ++n) keys[lane].at[n] =
            factor(tile[place_in(first + 8 * n + lane / 4, 4 * c + lane % 4)]);
      });
      UNROLL for (int half = 0; half < 2; ++half) {
        UNROLL for (int n = 0; n < kKeyTiles; ++n) {
          UNROLL for (int r = 0; r < kRowTiles; ++r) device::mma_tf32(
              warp, [&](int lane) -> FragmentC& { return scores[lane].at[r][n]; },
              [&](int lane) {
                const auto& of = state(lane).queries;
                return device::fragment_a(of[2 * r][c], of[2 * r + 1][c], half);
              },
              [&](int lane) { return device::fragment_b(keys[lane].at[n], half); });
        }
      }
    }

    PerThread<OfRows, 32> tile_max;
    if (!kAsksAhead && visible.mask) warp.apart(ask_for_mask);
    warp.apart([&](int lane) {
      finish_scores(scores[lane], added[lane]);
      if (!all_see) hide(scores[lane], place, length, row, key, lane);
      tile_max[lane] = max_of(scores[lane]);
    });
    over_quads<2 * kRowTiles>(
        warp, [&](int lane) { return tile_max[lane].at; }, [](float a, float c) { return max_score(a, c); });
    warp.apart([&](int lane) { update(state(lane), scores[lane], tile_max[lane]); });

    const Granule* const values_of = tile + kTileGranules;
    UNROLL for (int n = 0; n < kKeyTiles; ++n) {
      UNROLL for (int span = 0; span < kSpans; ++span) {
        PerThread<Values, 32> values;
        warp.apart([&](int lane) {
          UNROLL for (int i = 0; i < 2; ++i) values[lane].at[i] =
              factor(values_of[place_in(first + 8 * n + lane % 4 * 2 + i, 8 * span + lane / 4)]);
        });
        UNROLL for (int j = 0; j < 4; ++j) {
          UNROLL for (int r = 0; r < kRowTiles; ++r) device::mma_tf32(
              warp, [&](int lane) -> FragmentC& { return state(lane).acc[r][span][j]; },
              [&](int lane) { return as_factor(scores[lane].at[r][n]); },
              [&](int lane) {
                return FragmentB{{values[lane].at[0].at[j], values[lane].at[1].at[j]}};
              });
        }
      }
    }
  }

  DEVICE_FN static Granule factor(const Granule& granule) { return kRoundsAhead ? granule : device::as_tf32(granule); }
  // f(i, score, row, key) for each score of a lane: its rows are g + 8 row.
  DEVICE_FN static void each(Scores& scores, auto f) {
    UNROLL for (int r = 0; r < kRowTiles; ++r) {
      UNROLL for (int n = 0; n < kKeyTiles; ++n) {
        UNROLL for (int i = 0; i < 4; ++i) f(scores.at[r][n].at[i], 2 * r + i / 2, n, i);
      }
    }
  }
  // On its way beside the products. What is out of a query's range need not be there.
  DEVICE_FN void load_mask(Scores& to, const Place& place, int first, int key, int end, int lane) const {
    const int last = end < visible.mask_keys ? end : visible.mask_keys;
    int64_t rows[2 * kRowTiles];
    UNROLL for (int i = 0; i < 2 * kRowTiles; ++i) {
      int head;
      const int one = query(place, row_of(place, first, lane, i), head);
      rows[i] = visible.mask_row(place.batch, head, one);
    }
    each(to, [&](float& added, int row, int n, int i) {
      const int one = key + 8 * n + device::c_column(lane, i);
      added = one < last ? visible.added(rows[row], one) : 0.f;
    });
  }
  DEVICE_FN void finish_scores(Scores& scores, Scores& added) const {
    each(scores, [&](float& score, int, int, int) { score *= scale; });
    if (softcap > 0) each(scores, [&](float& score, int, int, int) { score = capped(score, softcap); });
    if (!visible.mask) return;
    const bool stays = blind == Blind::zeros;  // what is masked, whatever the score
    each(scores, [&](float& score, int row, int n, int i) {
      const float more = added.at[row / 2][n].at[i];
      score = stays && more == kMaskedScore<float> ? more : score + more;
    });
  }
  DEVICE_FN void hide(Scores& scores, const Place& place, int length, int first, int key, int lane) const {
    KeyRange seen[2 * kRowTiles];
    UNROLL for (int i = 0; i < 2 * kRowTiles; ++i) seen[i] = range(place, length, row_of(place, first, lane, i));
    each(scores, [&](float& score, int row, int n, int i) {
      const int one = key + 8 * n + device::c_column(lane, i);
      if (one < seen[row].first || one >= seen[row].end) score = kMaskedScore<float>;
    });
  }
  DEVICE_FN static OfRows max_of(Scores& scores) {
    OfRows most;
    UNROLL for (float& one : most.at) one = kMaskedScore<float>;
    each(scores, [&](float& score, int row, int, int) { most.at[row] = max_score(most.at[row], score); });
    return most;
  }
  // The online softmax: what was added up is corrected to the new maximum, and the scores become unnormalised
  // probabilities.
  DEVICE_FN static void update(State& state, Scores& scores, const OfRows& tile_max) {
    float base[2 * kRowTiles], correction[2 * kRowTiles];
    UNROLL for (int i = 0; i < 2 * kRowTiles; ++i) {
      const float now = max_score(state.row_max.at[i], tile_max.at[i]);
      base[i] = finite_max(now);
      correction[i] = exponential(state.row_max.at[i] - base[i]);
      state.row_max.at[i] = now;
      state.row_sum.at[i] *= correction[i];
    }
    UNROLL for (int r = 0; r < kRowTiles; ++r) {
      UNROLL for (int n = 0; n < kSpans; ++n) {
        UNROLL for (int j = 0; j < 4; ++j) {
          UNROLL for (int i = 0; i < 4; ++i) state.acc[r][n][j].at[i] *= correction[2 * r + i / 2];
        }
      }
    }
    each(scores, [&](float& score, int row, int, int) {
      score = exponential(score - base[row]);
      state.row_sum.at[row] += score;
    });
  }
  // Of keys 2 p and 2 p + 1, which are places p and p + 4 along the depth.
  DEVICE_FN static FragmentA as_factor(const FragmentC& probs) {
    const auto bits = [&](int i) { return device::as_tf32(std::bit_cast<uint32_t>(probs.at[i])); };
    return {{bits(0), bits(2), bits(1), bits(3)}};
  }

  DEVICE_FN static void store_partial(const Warp& warp, States& states, Shared& s, float* acc) {
    const auto state = [&](int lane) -> State& { return states[thread(warp, lane)]; };
    over_quads<2 * kRowTiles>(
        warp, [&](int lane) { return state(lane).row_sum.at; }, [](float a, float c) { return a + c; });
    const int of_warp = key_warp(warp.index());
    warp.apart([&](int lane) {
      UNROLL for (int i = 0; i < 2 * kRowTiles; ++i) {
        const int row = first_row(warp.index()) + lane / 4 + 8 * i;
        if (lane % 4 == 0) {
          s.row_max[of_warp][row] = state(lane).row_max.at[i];
          s.row_sum[of_warp][row] = state(lane).row_sum.at[i];
        }
        UNROLL for (int n = 0; n < kSpans; ++n) {
          UNROLL for (int e = 0; e < 2; ++e) {
            device::Pack<float, 4> pack;
            UNROLL for (int j = 0; j < 4; ++j) pack.at[j] = state(lane).acc[i / 2][n][j].at[i % 2 * 2 + e];
            const int column = 32 * n + 8 * (lane % 4) + 4 * e;
            *reinterpret_cast<device::Pack<float, 4>*>(acc + (of_warp * kRows + row) * kAccRow + column) = pack;
          }
        }
      }
    });
  }
  DEVICE_FN void finish(const Shared& s, const float* acc, const Place& place, int row, int column) const {
    int head;
    const int at = query(place, row, head);
    const float sink = sinks.at(head);
    float row_max = sink;
    UNROLL for (int w = 0; w < kKeyWarps; ++w) row_max = max_score(row_max, s.row_max[w][row]);
    const float base = finite_max(row_max);
    float row_sum = exponential(sink - base);
    device::Pack<float, 4> combined{};
    UNROLL for (int w = 0; w < kKeyWarps; ++w) {
      const float correction = exponential(s.row_max[w][row] - base);
      const auto own = *reinterpret_cast<const device::Pack<float, 4>*>(acc + (w * kRows + row) * kAccRow + column);
      UNROLL for (int i = 0; i < 4; ++i) combined.at[i] += own.at[i] * correction;
      row_sum += s.row_sum[w][row] * correction;
    }
    UNROLL for (int i = 0; i < 4; ++i) {
      float& value = combined.at[i];
      value = blind == Blind::zeros ? normalised(value, row_sum) : value / row_sum;
      if (blind == Blind::zeros_for_no_number && !(row_sum > 0)) value = 0;
    }
    device::store_pack(y.at(place.batch, head, at) + column, combined, aligned);
  }
};

template <class Warps>
void run(Context& context, const Attend& p, Blind blind) {
  using Kernel = AttendTf32<Warps>;
  const FoldedRows fold(p);
  const int tiles = (fold.rows + Kernel::kRows - 1) / Kernel::kRows;
  const device::Blocks grid{p.batch * p.kv_heads * tiles, Kernel::kThreads, Warps::dynamic_bytes(p.keys)};
  device::block_kernel<typename Kernel::Shared>(
      context.stream(), grid,
      Kernel{VisibleKeysView<float>(p, context.fault()), fold, SinkView<float>(p), p.q, p.k, p.v, p.y,
             device::SmallDivider(tiles), device::SmallDivider(int(p.kv_heads)), int(p.head_size), int(p.value_size),
             float(p.scale), float(p.softcap), blind, packs_fit<kInGranule, float>(p.y, p.value_size)});
}

}  // namespace

void attend_tf32(Context& context, const Attend& problem, Tf32Way way, Blind blind) {
  for_way(way, larger_size(problem), [&]<class Warps> { run<Warps>(context, problem, blind); });
}

}  // namespace encore::ops
