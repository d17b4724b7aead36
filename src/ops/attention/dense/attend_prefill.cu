// Prefill by tiles of 64 rows of queries and 64 keys: a block has its queries in shared memory, where keys and values
// take turns. Head sizes of any length go by in chunks.
#include "device/device.h"
#include "device/divide.h"
#include "device/launch.h"
#include "ops/attention/dense/tile_softmax.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Compute;
using device::Divider;
using device::PerThread;

// How shared memory is laid out.
struct TileLayout {
  int depth;            // of a chunk of queries and keys; a multiple of four
  int chunks;           // of the head size
  bool resident;        // all chunks of the queries stay; else each comes along with that of the keys
  int row;              // from one row of a chunk to the next, in values
  int64_t keys, probs;  // where they begin, in bytes; queries are first
  int64_t bytes;
};

// kFours: fours of values that a thread has of each row.
template <class T, int kFours>
struct AttendPrefill {
  using C = Compute<T>;
  // Twice as many threads: so a thread gets as few registers as leave room for a second block, which computes while the
  // first one loads.
  static constexpr int kMaxThreads = sizeof(C) == 8 ? kTileThreads : 2 * kTileThreads;
  static constexpr int kValues = kFours * kTile;  // that a block has of each row
  static constexpr int kPack = device::pack_size<T>();
  struct Shared {
    int query[kTile], head[kTile];  // of each row
    KeyRange range[kTile];
    int64_t mask[kTile];
  };
  using State = TileSoftmax<C, kFours>;

  VisibleKeysView<T> visible;
  FoldedRows fold;
  HeadView<const T> q, k, v;
  HeadView<T> y;
  int heads, kv_heads, head_size, value_size, tiles, value_parts;
  C scale, softcap;
  SinkView<T> sinks;
  T* scores;
  ScoresOutput::Stage stage;
  TileLayout layout;
  Divider packs;  // of a row of a chunk
  bool aligned, values_aligned;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    // Neighbouring blocks share keys; those with the last queries, which see most keys, come first.
    int64_t at = b.index();
    const int part = int(at % value_parts), tile = tiles - 1 - int(at / value_parts % tiles);
    at /= int64_t(value_parts) * tiles;
    const int64_t kv_head = at % kv_heads, batch = at / kv_heads;
    const int first_row = tile * kTile, rows = fold.rows - first_row < kTile ? fold.rows - first_row : kTile;
    const int length = visible.length(batch);
    b.threads([&](int t, Shared& s) {
      if (t >= kTile) return;
      const int row = t < rows ? first_row + t : first_row;
      s.query[t] = fold.query(row, s.head[t]);
      s.head[t] += int(kv_head * fold.group.divisor());
      s.range[t] = t < rows ? visible.range(length, s.query[t]) : KeyRange{0, 0};
      s.mask[t] = visible.mask_row(batch, s.head[t], s.query[t]);
    });
    // Keys from `seen` on may be anything, where only their scores are wanted.
    const int seen = b.reduce(
        0, [&](int t) { return t < rows ? s.range[t].end : 0; }, [](int a, int c) { return a > c ? a : c; });
    const int end = scores ? visible.keys : seen;
    const int first = scores ? 0
                             : b.reduce(
                                   end, [&](int t) { return t < rows ? s.range[t].first : visible.keys; },
                                   [](int a, int c) { return a < c ? a : c; });

    PerThread<State, kTileThreads> state;
    PerThread<Square<C>, kTileThreads> score;
    b.threads([&](int t, Shared& s) {
      state[t].clear();
      if (layout.resident)
        for (int c = 0; c < layout.chunks; ++c)
          load_queries(t, s, b.template dynamic<C>(s) + c * kTile * layout.row, batch, rows, c);
    });

    // Where the softmax itself is wanted, a second pass writes it, with the sums that the first has found.
    const int passes = scores && stage == ScoresOutput::softmax ? 2 : 1;
    for (int pass = 0; pass < passes; ++pass) {
      for (int key = first; key < end; key += kTile) {
        const int count = end - key < kTile ? end - key : kTile;
        meet(b, score, batch, kv_head, rows, key, count, part);
        if (pass == 1) {
          b.threads([&](int t, Shared& s) {
            each(t, score[t], [&](int i, int row, int j, C& one) {
              if (row >= rows || j >= count || part != 0) return;
              const C prob = exponential(one - finite_max(state[t].row_max.at[i])), row_sum = state[t].row_sum.at[i];
              const bool blind = s.range[row].end <= s.range[row].first || row_sum == 0;
              scores[score_at(s, batch, row) + key + j] = T(blind ? C(0) : prob / row_sum);
            });
          });
          continue;
        }
        PerThread<Four<C>, kTileThreads> tile_max;
        b.template reduce_groups<kTileSide>(
            tile_max, [&](int t) { return max_of(score[t]); }, MaxOfFour());
        b.threads([&](int t, Shared& s) {
          state[t].accumulate(t, score[t], tile_max[t], b.template dynamic<C>(s, layout.probs));
          const int own = seen - key < count ? seen - key : count;
          load_values(t, b.template dynamic<C>(s, layout.keys), batch, kv_head, part, key, own);
        });
        b.threads([&](int t, Shared& s) {
          state[t].add_values(t, b.template dynamic<C>(s, layout.probs), b.template dynamic<C>(s, layout.keys));
        });
      }
      if (pass == 1) break;
      PerThread<Four<C>, kTileThreads> row_sum;
      b.template reduce_groups<kTileSide>(
          row_sum, [&](int t) { return state[t].row_sum; }, SumOfFour());
      b.threads([&](int t, Shared&) { state[t].row_sum = row_sum[t]; });
      if (sinks.sinks) add_sinks(b, state, rows);
      b.threads([&](int t, Shared& s) { write(t, s, state[t], batch, rows, part); });
    }
  }

 private:
  // f(i, row, key, value) for each score of a thread.
  template <class F>
  DEVICE_FN void each(int t, Square<C>& square, F f) const {
    UNROLL for (int i = 0; i < kTileEach; ++i) {
      UNROLL for (int j = 0; j < kTileEach; ++j) f(i, tile_query(t, i), tile_key(t, j), square.row[i].at[j]);
    }
  }
  DEVICE_FN int64_t score_at(const Shared& s, int64_t batch, int row) const {
    return ((batch * heads + s.head[row]) * visible.queries + s.query[row]) * visible.keys;
  }

  DEVICE_FN void load_queries(int t, const Shared& s, C* to, int64_t batch, int rows, int chunk) const {
    for (int i = t; i < kTile * packs.divisor(); i += kTileThreads) {
      int64_t pack;
      const int row = int(packs(i, pack)), column = int(pack) * kPack, left = head_size - chunk * layout.depth - column;
      const T* from = q.at(batch, s.head[row], s.query[row]) + chunk * layout.depth + column;
      put_wide<kPack>(to + row * layout.row + column, from, row < rows ? left : 0, aligned);
    }
  }
  DEVICE_FN void load_keys(int t, C* to, int64_t batch, int64_t kv_head, int key, int count, int chunk) const {
    for (int i = t; i < kTile * packs.divisor(); i += kTileThreads) {
      int64_t pack;
      const int row = int(packs(i, pack)), column = int(pack) * kPack, left = head_size - chunk * layout.depth - column;
      const T* from = k.at(batch, kv_head, key + row) + chunk * layout.depth + column;
      put_wide<kPack>(to + row * layout.row + column, from, row < count ? left : 0, aligned);
    }
  }
  DEVICE_FN void load_values(int t, C* to, int64_t batch, int64_t kv_head, int part, int key, int count) const {
    constexpr int kPacks = kValues / kPack;
    for (int i = t; i < kTile * kPacks; i += kTileThreads) {
      const int row = i / kPacks, column = i % kPacks * kPack, from = part * kValues + column;
      put_wide<kPack>(to + row * kValues + column, v.at(batch, kv_head, key + row) + from,
                      row < count ? value_size - from : 0, values_aligned);
    }
  }

  // Scores of the tile's queries and of `count` keys from `key` on.
  DEVICE_FN void meet(Block<Shared>& b, PerThread<Square<C>, kTileThreads>& score, int64_t batch, int64_t kv_head,
                      int rows, int key, int count, int part) const {
    for (int chunk = 0; chunk < layout.chunks; ++chunk) {
      const int slot = layout.resident ? chunk * kTile * layout.row : 0;
      b.threads([&](int t, Shared& s) {
        if (!layout.resident) load_queries(t, s, b.template dynamic<C>(s), batch, rows, chunk);
        load_keys(t, b.template dynamic<C>(s, layout.keys), batch, kv_head, key, count, chunk);
      });
      b.threads([&](int t, Shared& s) {
        Square<C> square = score[t];
        if (chunk == 0) each(t, square, [](int, int, int, C& one) { one = 0; });
        add_products(square, t, b.template dynamic<C>(s) + slot, b.template dynamic<C>(s, layout.keys), layout.row,
                     layout.depth);
        if (chunk == layout.chunks - 1) mask(t, s, square, batch, rows, key, count, part);
        score[t] = square;
      });
    }
  }

  // From products to masked scores.
  DEVICE_FN void mask(int t, const Shared& s, Square<C>& square, int64_t batch, int rows, int key, int count,
                      int part) const {
    each(t, square, [&](int, int row, int j, C& one) {
      if (row >= rows || j >= count) {
        one = kMaskedScore<C>;
        return;
      }
      const bool shown = scores && part == 0;
      const auto show = [&](C value) { scores[score_at(s, batch, row) + key + j] = T(value); };
      const int at = key + j;
      one *= scale;
      if (shown && stage == ScoresOutput::scaled) show(one);
      one = capped(one, softcap);
      if (shown && stage == ScoresOutput::capped) show(one);
      const KeyRange range = s.range[row];
      const bool seen = at >= range.first && at < range.end;
      one = seen ? visible.masked(one, s.mask[row], at) : kMaskedScore<C>;
      if (shown && stage == ScoresOutput::seen) show(seen ? one : C(0));
      if (shown && stage == ScoresOutput::masked) show(one);
    });
  }

  // The score without a key comes last.
  DEVICE_FN void add_sinks(Block<Shared>& b, PerThread<State, kTileThreads>& state, int rows) const {
    b.threads([&](int t, Shared& s) {
      UNROLL for (int i = 0; i < kTileEach; ++i) {
        const int row = tile_query(t, i);
        const C sink = row < rows ? sinks.at(s.head[row]) : kMaskedScore<C>;
        const C base = state[t].raise_max(i, sink);
        state[t].row_sum.at[i] += exponential(sink - base);
      }
    });
  }

  DEVICE_FN void write(int t, const Shared& s, const State& state, int64_t batch, int rows, int part) const {
    UNROLL for (int i = 0; i < kTileEach; ++i) {
      const int row = tile_query(t, i);
      if (row >= rows) return;
      T* const to = y.at(batch, s.head[row], s.query[row]);
      const C row_sum = state.row_sum.at[i], inverse = row_sum == 0 ? C(0) : C(1) / row_sum;
      UNROLL for (int f = 0; f < kFours; ++f) {
        UNROLL for (int c = 0; c < kTileEach; ++c) {
          const int column = part * kValues + f * kTile + tile_value(t, c);
          if (column < value_size) to[column] = T(row_sum == 0 ? C(0) : state.acc[f].row[i].at[c] * inverse);
        }
      }
    }
  }
};

// With chunks of at most so many values.
template <class C, class T>
TileLayout layout_of(int64_t head_size, int values, int64_t most_depth, bool resident) {
  constexpr int kPack = device::pack_size<T>();
  TileLayout layout;
  layout.depth = int(std::min((head_size + kPack - 1) / kPack * kPack, most_depth));
  layout.depth = (layout.depth + kTileEach - 1) / kTileEach * kTileEach;
  layout.chunks = int((head_size + layout.depth - 1) / layout.depth);
  layout.row = layout.depth + kTileEach;  // so that neighbouring rows begin in other banks
  const int64_t chunk = int64_t(kTile) * layout.row * int64_t(sizeof(C));
  layout.resident = resident;
  layout.keys = resident ? layout.chunks * chunk : chunk;
  layout.probs = layout.keys + std::max(chunk, int64_t(kTile) * values * int64_t(sizeof(C)));
  layout.bytes = layout.probs + int64_t(kTile) * kProbRow * int64_t(sizeof(C));
  return layout;
}

// The queries stay if they are few and find room. Chunks for which there is none are halved.
template <class C, class T>
TileLayout layout_of(int64_t head_size, int values, int64_t most_bytes) {
  constexpr int64_t kMostResident = 70 * 1024, kLeastDepth = 16;
  for (int64_t depth = sizeof(C) == 8 ? 64 : 128;; depth /= 2) {
    const TileLayout stay = layout_of<C, T>(head_size, values, depth, true);
    if (stay.keys <= kMostResident && stay.bytes <= most_bytes) return stay;
    const TileLayout come = layout_of<C, T>(head_size, values, depth, false);
    if (come.bytes <= most_bytes || depth <= kLeastDepth) return come;
  }
}

template <class T, int kFours>
void run(Context& context, const Attend& p) {
  using Kernel = AttendPrefill<T, kFours>;
  using C = typename Kernel::C;
  const int64_t most_bytes = device::shared_bytes(context.stream().device()) - device::kLanesBytes;
  const TileLayout layout =
      layout_of<C, T>(p.head_size, Kernel::kValues, most_bytes - int64_t(sizeof(typename Kernel::Shared)));
  const FoldedRows fold(p);
  const int tiles = (fold.rows + kTile - 1) / kTile;
  const int parts = int(std::max<int64_t>(1, (p.value_size + Kernel::kValues - 1) / Kernel::kValues));
  const int packs = (layout.depth + Kernel::kPack - 1) / Kernel::kPack;
  const Kernel kernel{VisibleKeysView<T>(p, context.fault()),
                      fold,
                      p.q,
                      p.k,
                      p.v,
                      p.y,
                      int(p.heads),
                      int(p.kv_heads),
                      int(p.head_size),
                      int(p.value_size),
                      tiles,
                      parts,
                      C(p.scale),
                      C(p.softcap),
                      SinkView<T>(p),
                      static_cast<T*>(p.scores.data),
                      p.scores.stage,
                      layout,
                      Divider(packs, int64_t(kTile) * packs),
                      packs_fit<Kernel::kPack, T>(p.q, p.head_size) && packs_fit<Kernel::kPack, T>(p.k, p.head_size),
                      packs_fit<Kernel::kPack, T>(p.v, p.value_size)};
  const int64_t blocks = checked_product(checked_product(p.batch, p.kv_heads), checked_product(tiles, parts));
  device::block_kernel<typename Kernel::Shared>(context.stream(), {blocks, kTileThreads, layout.bytes}, kernel);
}

}  // namespace

void attend_prefill(Context& context, const Attend& problem) {
  dispatch(FloatList{}, problem.type, [&]<class T> {
    if constexpr (sizeof(T) == 8)
      run<T, 1>(context, problem);
    else if (problem.value_size <= kTile)
      run<T, 1>(context, problem);
    else
      run<T, 2>(context, problem);
  });
}

}  // namespace encore::ops
