// Decode on tensor cores: queries, and grouped heads that share one of keys, are the columns of tiles of 16 keys. So
// keys and values are read once, straight into the registers of the lanes that need them, for all rows.
//
// A warp takes every fourth tile of its block's share of the keys, with the keys and the values of the next one on
// their way, and keeps up its own softmax. Warps, and blocks that share out the keys, are combined at the end.
//
// Which value of a head is which row of a tile is free, as long as both factors agree. A lane reads eight values at
// once: of keys and queries it has four columns of two tiles, of values the same row of eight. With g = lane / 4 and
// p = lane % 4, in tiles of the keys i = 0 to 15:
//   keys     i = g, g + 8                       values 32 c + 8 p to + 7
//   scores   i = g, g + 8                       rows 2 p, 2 p + 1
//   values   i = 2 p, 2 p + 1, 2 p + 8, 2 p + 9 values 64 s + 8 g to + 7
//   acc      values 64 s + 8 g to + 7           rows 2 p, 2 p + 1
//
// Where rows and keys are is the source's to know. Keys go in slots, of which some may be empty:
//   find(b, part)            the rows of a block, its share of keys aside; may use the block, and find none
//   range(tile, row)         the keys of a row; later rows see no earlier ones
//   slots(b, s, tile, first, end)    where those keys are that any row sees; fetch(b, tile, slots, end) before a share
//                            of them is looked at
//   walk<kValues>(b, s, tile, slot, end, slots)    what the tile of slots that begins there has in common
//   key_row(tile, walk, slot, in_tile, there), value_row    a key's own, of which load(row, column) gives eight values
//   words(raw)               those eight values, where they are wanted: what is on its way is as it was loaded
//   there(row)               whether it has any: only where kHoles
//   look(b, s, tile, slot, end, slots)    what is to be known of a tile of slots for
//     plain(look, slot, end, all, rows)    whether every row sees them, if every row sees the keys in `all`
//     sees(look, slot, in_tile, end, row, range)    whether a row does
//   q(tile, row, column)     eight values of a query
//   y(tile, row), head(tile, row), partial_row(tile, row)
//   score_scale(scale), finished(tile, value, column)    what scores and results are multiplied by
//   masked(score, tile, mask_row, key), mask_row(tile, row), has_mask()
//   Shared                   what it keeps in shared memory, as `look`
#pragma once
#include "device/divide_small.h"
#include "device/mma_fragments.h"
#include "ops/attention/dense/group_softmax.h"
#include "ops/attention/dense/key_slots.h"
#include "ops/attention/dense/split_k.h"

namespace encore::ops {

using Words = device::WordsOf<device::Half, 8>;  // eight values

// Of a source of which the slots are the keys themselves.
struct KeysAsSlots {
  struct Shared {};
  // For launches: the keys that are likely to be looked at, and the dynamic shared memory wanted behind `from`.
  static int64_t likely_keys(const Attend& p) { return p.keys; }
  static int64_t place(int64_t /*from*/, int64_t /*shares*/) { return 0; }
  struct Look {};
  template <class B, class S, class Tile>
  DEVICE_FN static Slots slots(B&, const S&, const Tile&, int first, int end) {
    return {first, end, end, first};
  }
  template <class B, class Tile>
  DEVICE_FN static void fetch(B&, const Tile&, const Slots&, int) {}
  template <class B, class S, class Tile>
  DEVICE_FN static Look look(const B&, const S&, const Tile&, int, int, const Slots&) {
    return {};
  }
  template <int kKeys>
  DEVICE_FN static bool plain(Look, int slot, int end, KeyRange all, int) {
    return slot >= all.first && slot + kKeys <= (all.end < end ? all.end : end);
  }
  DEVICE_FN static bool sees(Look, int slot, int in_tile, int end, int, KeyRange range) {
    const int key = slot + in_tile;
    return key < end && key >= range.first && key < range.end;
  }
};

// Heads of up to 32 kChunks values, eight rows in each of kTiles.
template <class T, int kChunks, int kTiles, class Source>
struct AttendGroupedDecode {
  template <class S>
  using Block = device::Block<S>;
  template <class V, int kMost>
  using PerThread = device::PerThread<V, kMost>;
  using FragmentC = device::FragmentC;
  using Warp = device::Warp;
  using Tile = typename Source::Tile;
  using Raw = typename Source::Raw;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kKeys = 16;
  static constexpr int kRows = 8 * kTiles, kSpans = kChunks / 2, kWidth = 32 * kChunks;
  static constexpr int kWays = kTiles == 1 ? 2 : 1;  // in which products are summed up: tensor cores take their time
  // Blocks that are to fit into a multiprocessor, as registers allow: they keep some 50 KiB on their way to it.
  static constexpr int kRoom = kChunks == 2 ? (kTiles == 1 ? 5 : kTiles == 2 ? 4 : 3) : kChunks * kTiles == 4 ? 3 : 2;
  static constexpr int kMaxThreads = kRoom * kThreads;  // so that registers are given out for as many
  using State = GroupSoftmax<T, kTiles, kSpans>;
  using OfRows = typename State::OfRows;
  static constexpr int kAccRow = State::kAccRow;
  static constexpr int64_t kAccBytes = int64_t(kWarps) * kRows * kAccRow * int64_t(sizeof(float));

  struct Shared {
    Words q[kTiles][kChunks][32];
    int64_t mask_row[kRows];
    KeyRange range[kRows];
    float row_max[kWarps][kRows], row_sum[kWarps][kRows];
    typename Source::Shared look;
  };
  struct Keys {
    Raw at[2][kChunks];
    bool there[Source::kHoles ? 2 : 1];
  };
  struct Values {
    Raw at[4][kSpans];
  };
  struct Scores {
    FragmentC at[kTiles][kWays];
  };

  Source source;
  SinkView<T> sinks;
  int head_size, value_size;
  float scale, softcap;
  SplitPartials partial;
  device::SmallDivider by_shares;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& shared) const {
    const int shares = partial.shares;
    int share;
    const int part = by_shares(int(b.index()), share);
    const Tile tile = source.find(b, part);
    const int rows = tile.rows;
    if constexpr (Source::kFindsNone) {
      if (rows <= 0) return;
    }

    // The keys that any of the rows sees, those that all see, and this block's share. Rows are in order of queries.
    const KeyRange low = source.range(tile, 0), high = source.range(tile, rows - 1);
    Slots slots = source.slots(b, shared, tile, low.first, high.end);
    const int tiles = slots.end > slots.first ? (slots.end - slots.first + kKeys - 1) / kKeys : 0;
    const int own = (tiles + shares - 1) / shares;
    const int first = slots.first + share * own * kKeys;
    const int end = slots.end - first > own * kKeys ? first + own * kKeys : slots.end;
    const KeyRange all{high.first, low.end};
    const float factor = source.score_scale(scale);
    if (first >= end && shares > 1) {
      b.threads([&](int t, Shared&) {
        if (t < rows) leave(source.partial_row(tile, t) * shares + share, kMaskedScore<float>, 0);
      });
      return;
    }
    slots.share = first;
    source.fetch(b, tile, slots, end);

    PerThread<Keys, kThreads> keys;
    PerThread<Values, kThreads> values;
    b.threads([&](int t, Shared& s) {
      const int slot = first + t / 32 * kKeys;
      load_keys(keys[t], b, s, tile, slot, end, slots, t % 32);
      load_values(values[t], b, s, tile, slot, end, slots, t % 32);
      for (int i = t; i < kTiles * kChunks * 32; i += kThreads) {
        const int lane = i % 32, chunk = i / 32 % kChunks, of_rows = i / 32 / kChunks;
        const int row = 8 * of_rows + lane / 4, column = 32 * chunk + 8 * (lane % 4);
        const bool there = row < rows && column < head_size;
        s.q[of_rows][chunk][lane] = there ? source.q(tile, row, column) : Words{};
      }
      if (t < rows) {
        s.range[t] = source.range(tile, t);
        s.mask_row[t] = source.mask_row(tile, t);
      }
    });
    device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
      PerThread<State, 32> state;
      warp.lanes([&](int lane) { state[lane].clear(); });
      attend_keys(warp, b, s, state, keys, values,
                  {tile, slots, all, first + warp.index() * kKeys, end, kWarps * kKeys, factor});
      State::store_partial(warp, state, s.row_max[warp.index()], s.row_sum[warp.index()],
                           b.template dynamic<float>(s) + warp.index() * kRows * kAccRow);
    });
    b.threads([&](int t, Shared& s) {
      const float* const acc = b.template dynamic<float>(s);
      for (int i = t; i < rows * kWidth; i += kThreads) {
        const int row = i / kWidth, column = i % kWidth;
        if (column < value_size) finish(s, acc + row * kAccRow + column, tile, row, column, share);
      }
    });
  }

  // What a warp looks at: tiles of the slots from `first` to end, every one `step` behind the one before. Each row sees
  // the keys in `all`.
  struct Walked {
    const Tile& tile;
    const Slots& slots;
    KeyRange all;
    int first, end, step;
    float factor;  // of scores
  };
  // The keys and values of the first tile are on their way to the warp's threads.
  template <class B, class S, int kMost>
  DEVICE_FN void attend_keys(const Warp& warp, B& b, S& s, PerThread<State, 32>& state, PerThread<Keys, kMost>& keys,
                             PerThread<Values, kMost>& values, const Walked& walked) const {
    const Tile& tile = walked.tile;
    const Slots& slots = walked.slots;
    const int thread = 32 * warp.index(), end = walked.end;
    for (int slot = walked.first; slot < end; slot += walked.step) {
      const int next = slot + walked.step;
      PerThread<Scores, 32> scores;
      PerThread<OfRows, 32> tile_max;
      warp.lanes([&](int lane) { scores[lane] = Scores{}; });
      UNROLL for (int c = 0; c < kChunks; ++c) {
        UNROLL for (int r = 0; r < kTiles; ++r) {
          UNROLL for (int half = 0; half < 2; ++half) {
            warp.template mma<T>([&](int lane) -> FragmentC& { return scores[lane].at[r][half % kWays]; },
                                 [&](int lane) {
                                   const Keys& of = keys[thread + lane];
                                   return device::fragment_a(Source::words(of.at[0][c]), Source::words(of.at[1][c]),
                                                             half);
                                 },
                                 [&](int lane) { return device::fragment_b(s.q[r][c][lane], half); });
          }
        }
      }
      warp.lanes([&](int lane) {
        bool there[2] = {true, true};
        if constexpr (Source::kHoles) {
          UNROLL for (int i = 0; i < 2; ++i) there[i] = keys[thread + lane].there[i];
        }
        load_keys(keys[thread + lane], b, s, tile, next, end, slots, lane);
        const auto look = source.look(b, s, tile, slot, end, slots);
        const bool plain = source.template plain<kKeys>(look, slot, end, walked.all, tile.rows) && there[0] && there[1];
        mask_and_max(scores[lane], tile_max[lane], s, tile, look, slot, end, plain, there, walked.factor, lane);
      });
      State::accumulate(warp, state, scores, tile_max, [&](int lane, int key, int span, int i) {
        return Source::words(values[thread + lane].at[key][span]).at[i];
      });
      warp.lanes([&](int lane) { load_values(values[thread + lane], b, s, tile, next, end, slots, lane); });
    }
  }
  // A lane's part of the tile that begins with `slot`; zeros from `end` on.
  template <class B, class S>
  DEVICE_FN void load_keys(Keys& to, const B& b, const S& s, const Tile& tile, int slot, int end, const Slots& slots,
                           int lane) const {
    const auto walk = source.template walk<false>(b, s, tile, slot, end, slots);
    UNROLL for (int i = 0; i < 2; ++i) {
      const int one = slot + lane / 4 + 8 * i;
      const auto row = source.key_row(tile, walk, one, one - slot, one < end);
      const bool there = one < end && source.there(row);
      if constexpr (Source::kHoles) to.there[i] = there;
      UNROLL for (int c = 0; c < kChunks; ++c) {
        const int column = 32 * c + 8 * (lane % 4);
        to.at[i][c] = there && column < head_size ? source.load(row, column) : Raw{};
      }
    }
  }
  template <class B, class S>
  DEVICE_FN void load_values(Values& to, const B& b, const S& s, const Tile& tile, int slot, int end,
                             const Slots& slots, int lane) const {
    const auto walk = source.template walk<true>(b, s, tile, slot, end, slots);
    UNROLL for (int i = 0; i < 4; ++i) {
      const int one = slot + device::k_of(lane, i);
      const auto row = source.value_row(tile, walk, one, one - slot, one < end);
      const bool there = one < end && source.there(row);
      UNROLL for (int n = 0; n < kSpans; ++n) {
        const int column = 64 * n + 8 * (lane / 4);
        to.at[i][n] = there && column < value_size ? source.load(row, column) : Raw{};
      }
    }
  }

 private:
  // Scales and masks the scores of a tile, and finds each lane's maxima. `plain`: every row sees all of these keys.
  template <class S>
  DEVICE_FN void mask_and_max(Scores& scores, OfRows& tile_max, const S& s, const Tile& tile, const auto& look,
                              int slot, int end, bool plain, const bool (&there)[2], float factor, int lane) const {
    UNROLL for (int r = 0; r < kTiles; ++r) {
      FragmentC& scored = scores.at[r][0];
      UNROLL for (int i = 0; i < 4; ++i) {
        UNROLL for (int way = 1; way < kWays; ++way) scored.at[i] += scores.at[r][way].at[i];
        scored.at[i] *= factor;
      }
    }
    if (softcap > 0) {
      UNROLL for (int r = 0; r < kTiles; ++r) {
        UNROLL for (float& score : scores.at[r][0].at) score = capped(score, softcap);
      }
    }
    UNROLL for (int r = 0; r < kTiles; ++r) {
      FragmentC& scored = scores.at[r][0];
      if (!plain || source.has_mask()) {
        UNROLL for (int i = 0; i < 4; ++i) {
          const int row = 8 * r + device::c_column(lane, i), one = device::c_row(lane, i);
          const bool seen = row < tile.rows && there[i / 2] && source.sees(look, slot, one, end, row, s.range[row]);
          scored.at[i] = seen ? source.masked(scored.at[i], s.mask_row[row], slot + one) : kMaskedScore<float>;
        }
      }
      UNROLL for (int e = 0; e < 2; ++e) tile_max.at[r][e] = max_score(scored.at[e], scored.at[e + 2]);
    }
  }
  // `acc` is the first warp's.
  DEVICE_FN void finish(const Shared& s, const float* acc, const Tile& tile, int row, int column, int share) const {
    const float sink = partial.shares == 1 ? sinks.at(source.head(tile, row)) : kMaskedScore<float>;
    const auto combined = State::template combine<1>(s.row_max, s.row_sum, acc, row, sink);
    const float sum = source.finished(tile, combined.acc.at[0], column);
    if (partial.shares == 1) {
      source.y(tile, row)[column] = T(normalised(sum, combined.row_sum));
      return;
    }
    const int64_t at = source.partial_row(tile, row) * partial.shares + share;
    partial.acc[at * value_size + column] = sum;
    if (column == 0) leave(at, combined.row_max, combined.row_sum);
  }
  DEVICE_FN void leave(int64_t at, float row_max, float row_sum) const {
    partial.row_max[at] = row_max;
    partial.row_sum[at] = row_sum;
  }
};

// `own_bytes` of dynamic shared memory the source has behind kAccBytes. `p` says what it does not: sizes, scale,
// softcap and sinks, and where y and its rows are for what is shared.
template <class T, int kChunks, int kTiles, class Source>
void launch_grouped_decode(Context& context, const Attend& p, const Source& source, int64_t blocks,
                           const SplitPartials& partial, int64_t own_bytes = 0) {
  using Kernel = AttendGroupedDecode<T, kChunks, kTiles, Source>;
  device::block_kernel<typename Kernel::Shared>(
      context.stream(), {checked_product(blocks, partial.shares), Kernel::kThreads, Kernel::kAccBytes + own_bytes},
      Kernel{source, SinkView<T>(p), int(p.head_size), int(p.value_size), float(p.scale), float(p.softcap), partial,
             device::SmallDivider(partial.shares)});
  combine_splits(context, p, partial);
}

}  // namespace encore::ops
