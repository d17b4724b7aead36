// Attention of few rows to keys in slots (attend_keys.h), of which there may be as many as a list or a layout shows.
// Tiles, warps and lanes are those of attend_group.h.
#pragma once
#include <bit>

#include "device/warp.h"
#include "ops/attention/attend_keys.h"
#include "ops/attention/attend_shares.h"
#include "ops/attention/group_softmax.h"
#include "ops/dispatch.h"

namespace encore::ops {

using device::Block;
using device::LeftTile;
using device::Pack;
using device::PerThread;
using device::RightTile;
using device::SumTile;
using device::Warp;

// Heads of up to 32 kChunks values, eight rows in each of kTiles; `Look` is EveryKey or its like.
template <class T, int kChunks, int kTiles, class Look = EveryKey<T>>
struct AttendSlots {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kKeys = 16;
  static constexpr int kRows = 8 * kTiles, kSpans = kChunks / 2, kWidth = 32 * kChunks;
  static constexpr int kWays = kTiles == 1 ? 2 : 1;  // in which products are summed up: tensor cores take their time
  // Blocks that are to fit into a multiprocessor, as registers allow: they keep some 50 KiB on their way to it.
  static constexpr int kRoom = kChunks == 2 ? (kTiles == 1 ? 5 : kTiles == 2 ? 4 : 3) : kChunks * kTiles == 4 ? 3 : 2;
  static constexpr int kMaxThreads = kRoom * kThreads;  // so that registers are given out for as many
  using State = GroupSoftmax<T, kTiles, kSpans>;
  using Powers = typename State::Powers;
  using OfRows = typename State::OfRows;
  static constexpr int kSumsRow = State::kSumsRow;
  static constexpr int64_t kSumsBytes = int64_t(kWarps) * kRows * kSumsRow * int64_t(sizeof(float));
  using Words = Pack<uint32_t, 4>;  // eight values

  struct Shared {
    Words q[kTiles][kChunks][32];
    int64_t mask_row[kRows];
    KeyRange range[kRows];
    float top[kWarps][kRows], total[kWarps][kRows];
    typename Look::Shared look;
  };
  using Tile = typename Look::Tile;
  struct Keys {
    Words at[2][kChunks];
  };
  struct Values {
    Words at[4][kSpans];
  };
  struct Scores {
    SumTile at[kTiles][kWays];
  };
  SightView<T> sight;
  FoldedRows fold;
  HeadView<const T> q;
  Look look;
  HeadView<T> y;
  SinkView<T> sinks;
  int heads, kv_heads, head_size, value_size, row_parts;
  float scale, softcap;
  Partial partial;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    const int shares = partial.shares;
    const int index = int(b.index()), share = index % shares, part = index / shares;
    const int first_row = part % row_parts * kRows, place = part / row_parts;
    const int kv_head = place % kv_heads, batch = place / kv_heads;
    const int rows = fold.rows - first_row < kRows ? fold.rows - first_row : kRows;

    // The keys that any of the rows sees, those that all see, and this block's share of the slots. Rows are in order of
    // queries.
    const int length = sight.length(batch);
    const RowsOfBlock<T> own_rows{sight, fold, batch, kv_head, first_row, rows, length};
    int head;
    const KeyRange low = sight.range(length, fold.query(first_row, head));
    const KeyRange high = sight.range(length, fold.query(first_row + rows - 1, head));
    Slots slots = look.begin(b, s, own_rows, low.first, high.end);
    const int tiles = slots.end > slots.first ? (slots.end - slots.first + kKeys - 1) / kKeys : 0;
    const int own = (tiles + shares - 1) / shares;
    const int first = slots.first + share * own * kKeys;
    const int end = slots.end - first > own * kKeys ? first + own * kKeys : slots.end;
    const KeyRange all{high.first, low.end};
    if (first >= end && shares > 1) {
      b.threads([&](int t, Shared&) {
        if (t < rows) leave(partial_row(batch, kv_head, first_row + t) * shares + share, kUnseen<float>, 0);
      });
      return;
    }
    slots.share = first;
    look.fetch(b, own_rows, slots, end);

    PerThread<Keys, kThreads> keys;
    PerThread<Values, kThreads> values;
    b.threads([&](int t, Shared& s) {
      const Tile tile = look.tile(b, s, first + t / 32 * kKeys, end, slots);
      load_keys(keys[t], tile, batch, kv_head, t % 32);
      load_values(values[t], tile, batch, kv_head, t % 32);
      for (int i = t; i < kTiles * kChunks * 32; i += kThreads) {
        const int lane = i % 32, chunk = i / 32 % kChunks, tile = i / 32 / kChunks;
        const int row = 8 * tile + lane / 4, column = 32 * chunk + 8 * (lane % 4);
        int in_group;
        const int query = fold.query(first_row + (row < rows ? row : 0), in_group);
        const T* const from = q.at(batch, kv_head * fold.group.divisor() + in_group, query);
        s.q[tile][chunk][lane] = words(from + column, row < rows && column < head_size);
      }
      if (t < rows) {
        int in_group;
        const int query = fold.query(first_row + t, in_group);
        s.range[t] = sight.range(length, query);
        s.mask_row[t] = sight.mask_row(batch, kv_head * fold.group.divisor() + in_group, query);
      }
    });
    device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
      const int thread = 32 * warp.index();
      PerThread<State, 32> state;
      warp.lanes([&](int lane) { state[lane].clear(); });
      Tile tile = look.tile(b, s, first + warp.index() * kKeys, end, slots);
      for (int slot = first + warp.index() * kKeys; slot < end; slot += kWarps * kKeys) {
        const Tile next = look.tile(b, s, slot + kWarps * kKeys, end, slots);
        PerThread<Scores, 32> scores;
        PerThread<OfRows, 32> tops;
        PerThread<Powers, 32> powers;
        warp.lanes([&](int lane) { scores[lane] = Scores{}; });
        UNROLL for (int c = 0; c < kChunks; ++c) {
          UNROLL for (int r = 0; r < kTiles; ++r) {
            UNROLL for (int half = 0; half < 2; ++half) {
              warp.template multiply<T>([&](int lane) -> SumTile& { return scores[lane].at[r][half % kWays]; },
                                        [&](int lane) {
                                          const Keys& of = keys[thread + lane];
                                          return LeftTile{{of.at[0][c].at[2 * half], of.at[1][c].at[2 * half],
                                                           of.at[0][c].at[2 * half + 1], of.at[1][c].at[2 * half + 1]}};
                                        },
                                        [&](int lane) {
                                          const Words& of = s.q[r][c][lane];
                                          return RightTile{{of.at[2 * half], of.at[2 * half + 1]}};
                                        });
            }
          }
        }
        warp.lanes([&](int lane) {
          load_keys(keys[thread + lane], next, batch, kv_head, lane);
          judge(scores[lane], tops[lane], s, tile, look.plain(tile, kKeys, all, rows), rows, lane);
        });
        UNROLL for (int r = 0; r < kTiles; ++r) {
          UNROLL for (int e = 0; e < 2; ++e) warp.template reduce_columns<4>(
              [&](int lane) -> float& { return tops[lane].at[r][e]; }, [](float a, float c) { return larger(a, c); });
        }
        warp.lanes([&](int lane) { state[lane].raise(scores[lane].at, tops[lane], powers[lane]); });
        UNROLL for (int r = 0; r < kTiles; ++r) {
          UNROLL for (int e = 0; e < 2; ++e)
              warp.transpose([&](int lane) -> uint32_t& { return powers[lane].at[r][e]; });
        }
        UNROLL for (int n = 0; n < kSpans; ++n) {
          UNROLL for (int i = 0; i < 4; ++i) {
            UNROLL for (int r = 0; r < kTiles; ++r) {
              warp.template multiply<T>([&](int lane) -> SumTile& { return state[lane].sums[r][n][i]; },
                                        [&](int lane) {
                                          const Values& of = values[thread + lane];
                                          const uint32_t a = of.at[0][n].at[i], c = of.at[1][n].at[i],
                                                         d = of.at[2][n].at[i], e = of.at[3][n].at[i];
                                          return LeftTile{{device::low_halves(a, c), device::high_halves(a, c),
                                                           device::low_halves(d, e), device::high_halves(d, e)}};
                                        },
                                        [&](int lane) {
                                          return RightTile{{powers[lane].at[r][0], powers[lane].at[r][1]}};
                                        });
            }
          }
        }
        warp.lanes([&](int lane) { load_values(values[thread + lane], next, batch, kv_head, lane); });
        tile = next;
      }
      UNROLL for (int r = 0; r < kTiles; ++r) {
        UNROLL for (int e = 0; e < 2; ++e) warp.template reduce_columns<4>(
            [&](int lane) -> float& { return state[lane].total[r][e]; }, [](float a, float c) { return a + c; });
      }
      warp.lanes([&](int lane) {
        state[lane].show(s.top[warp.index()], s.total[warp.index()],
                         b.template dynamic<float>(s) + warp.index() * kRows * kSumsRow, lane);
      });
    });
    b.threads([&](int t, Shared& s) {
      const float* const sums = b.template dynamic<float>(s);
      for (int i = t; i < rows * kWidth; i += kThreads) {
        const int row = i / kWidth, column = i % kWidth;
        if (column < value_size)
          finish(s, sums + row * kSumsRow + column, batch, kv_head, first_row, row, column, share);
      }
    });
  }

 private:
  DEVICE_FN static Words words(const T* from, bool there) {
    if (!there) return Words{};
    return std::bit_cast<Words>(device::load_pack<8>(from, true));
  }
  // A lane's part of the tile; zeros for what is not there.
  DEVICE_FN void load_keys(Keys& to, const Tile& tile, int batch, int kv_head, int lane) const {
    UNROLL for (int i = 0; i < 2; ++i) {
      const int one = lane / 4 + 8 * i;
      const T* const from = look.key_at(tile, batch, kv_head, one) + 8 * (lane % 4);
      UNROLL for (int c = 0; c < kChunks; ++c) to.at[i][c] =
          words(from + 32 * c, tile.there(one) && 32 * c + 8 * (lane % 4) < head_size);
    }
  }
  DEVICE_FN void load_values(Values& to, const Tile& tile, int batch, int kv_head, int lane) const {
    UNROLL for (int i = 0; i < 4; ++i) {
      const int one = lane % 4 * 2 + i % 2 + i / 2 * 8;
      const T* const from = look.value_at(tile, batch, kv_head, one) + 8 * (lane / 4);
      UNROLL for (int n = 0; n < kSpans; ++n) to.at[i][n] =
          words(from + 64 * n, tile.there(one) && 64 * n + 8 * (lane / 4) < value_size);
    }
  }
  // From products to masked scores, of which a lane's largest go to `tops`. `plain`: every row sees all of these keys.
  DEVICE_FN void judge(Scores& scores, OfRows& tops, const Shared& s, const Tile& tile, bool plain, int rows,
                       int lane) const {
    UNROLL for (int r = 0; r < kTiles; ++r) {
      SumTile& scored = scores.at[r][0];
      UNROLL for (int i = 0; i < 4; ++i) {
        UNROLL for (int way = 1; way < kWays; ++way) scored.at[i] += scores.at[r][way].at[i];
        scored.at[i] = capped(scored.at[i] * scale, softcap);
      }
      if (!plain || (Look::kMasks && sight.mask)) {
        UNROLL for (int i = 0; i < 4; ++i) {
          const int row = 8 * r + lane % 4 * 2 + i % 2, one = lane / 4 + i / 2 * 8;
          const bool seen = row < rows && look.sees(tile, one, row, s.range[row]);
          if constexpr (Look::kMasks)
            scored.at[i] = seen ? sight.masked(scored.at[i], s.mask_row[row], tile.key(one)) : kUnseen<float>;
          else
            scored.at[i] = seen ? scored.at[i] : kUnseen<float>;
        }
      }
      UNROLL for (int e = 0; e < 2; ++e) tops.at[r][e] = larger(scored.at[e], scored.at[e + 2]);
    }
  }
  // `sums` are the first warp's.
  DEVICE_FN void finish(const Shared& s, const float* sums, int batch, int kv_head, int first_row, int row, int column,
                        int share) const {
    int in_group;
    const int query = fold.query(first_row + row, in_group);
    const int64_t head = kv_head * fold.group.divisor() + in_group;
    const float sink = partial.shares == 1 ? sinks.at(head) : kUnseen<float>;
    float top = sink, sum = 0;
    UNROLL for (int w = 0; w < kWarps; ++w) top = larger(top, s.top[w][row]);
    const float base = base_of(top);
    float total = exponential(sink - base);
    UNROLL for (int w = 0; w < kWarps; ++w) {
      const float shrink = exponential(s.top[w][row] - base);
      sum += sums[w * kRows * kSumsRow] * shrink;
      total += s.total[w][row] * shrink;
    }
    if (partial.shares == 1) {
      y.at(batch, head, query)[column] = T(normalised(sum, total));
      return;
    }
    const int64_t at = partial_row(batch, kv_head, first_row + row) * partial.shares + share;
    partial.sums[at * value_size + column] = sum;
    if (column == 0) leave(at, top, total);
  }
  DEVICE_FN int64_t partial_row(int batch, int kv_head, int row) const {
    int in_group;
    const int query = fold.query(row, in_group);
    return (int64_t(batch) * heads + kv_head * fold.group.divisor() + in_group) * sight.queries + query;
  }
  DEVICE_FN void leave(int64_t at, float top, float total) const {
    partial.top[at] = top;
    partial.total[at] = total;
  }
};

template <class T, int kChunks, int kTiles, class Look>
void launch_slots(Context& context, const Attend& p, Look look) {
  using Kernel = AttendSlots<T, kChunks, kTiles, Look>;
  const FoldedRows fold(p);
  const int row_parts = (fold.rows + Kernel::kRows - 1) / Kernel::kRows;
  const int64_t blocks = checked_product(checked_product(p.batch, p.kv_heads), row_parts);
  Attend looked = p;
  looked.keys = look.keys();
  const Partial partial =
      make_partial(context, p, shares_for(context, looked, blocks, Kernel::kRoom, 2 * Kernel::kWarps * Kernel::kKeys));
  const int64_t bytes = Kernel::kSumsBytes + look.place(Kernel::kSumsBytes, partial.shares);
  device::block_kernel<typename Kernel::Shared>(
      context.stream(), {checked_product(blocks, partial.shares), Kernel::kThreads, bytes},
      Kernel{SightView<T>(p, context.fault()), fold, p.q, look, p.y, SinkView<T>(p), int(p.heads), int(p.kv_heads),
             int(p.head_size), int(p.value_size), row_parts, float(p.scale), float(p.softcap), partial});
  combine_shares(context, p, partial);
}

template <class T, int kChunks, class Look>
void launch_slots(Context& context, const Attend& p, const Look& look) {
  const int64_t rows = p.queries * (p.heads / p.kv_heads);
  if (rows <= 8 || kChunks > 4)
    launch_slots<T, kChunks, 1>(context, p, look);
  else if constexpr (kChunks <= 4) {
    if (rows <= 16)
      launch_slots<T, kChunks, 2>(context, p, look);
    else
      launch_slots<T, kChunks, 4>(context, p, look);
  }
}

template <class T, class Look>
void launch_slots(Context& context, const Attend& p, const Look& look) {
  const int64_t size = std::max(p.head_size, p.value_size);
  if (size <= 64)
    launch_slots<T, 2>(context, p, look);
  else if (size <= 128)
    launch_slots<T, 4>(context, p, look);
  else
    launch_slots<T, 8>(context, p, look);
}

}  // namespace encore::ops
