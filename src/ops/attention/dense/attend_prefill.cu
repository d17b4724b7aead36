// Prefill by tiles: 64 rows of queries meet 64 keys at a time, with the softmax kept up to date as keys go by.
//
// A block of 16 x 16 threads has its queries in shared memory, where keys and values take turns. A thread has the
// scores of four rows and four keys, 16 keys apart so that its neighbours read other banks, and sums for its four rows
// and every 16th part of the values. Head sizes of any length go by in chunks.
#include "device/launch.h"
#include "ops/attention/dense/attend_view.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Compute;
using device::Divider;
using device::Pack;
using device::PerThread;

constexpr int kTile = 64, kSide = 16, kThreads = kSide * kSide, kPer = kTile / kSide;

template <class C>
struct Four {
  C at[kPer];
};
template <class C>
struct LargerOfFour {
  DEVICE_FN Four<C> operator()(Four<C> a, const Four<C>& b) const {
    UNROLL for (int i = 0; i < kPer; ++i) a.at[i] = larger_score(a.at[i], b.at[i]);
    return a;
  }
};
template <class C>
struct SumOfFour {
  DEVICE_FN Four<C> operator()(Four<C> a, const Four<C>& b) const {
    UNROLL for (int i = 0; i < kPer; ++i) a.at[i] += b.at[i];
    return a;
  }
};

// Four neighbours in shared memory.
template <class C>
DEVICE_FN Four<C> four(const C* from) {
  constexpr int kPack = device::pack_size<C>();
  Four<C> all;
  UNROLL for (int i = 0; i < kPer; i += kPack) {
    const auto pack = *reinterpret_cast<const Pack<C, kPack>*>(from + i);
    UNROLL for (int j = 0; j < kPack; ++j) all.at[i + j] = pack.at[j];
  }
  return all;
}

// How shared memory is laid out.
struct TileLayout {
  int depth;             // of a chunk of queries and keys; a multiple of four
  int chunks;            // of the head size
  bool resident;         // all chunks of the queries stay; else each comes along with that of the keys
  int row;               // from one row of a chunk to the next, in values
  int64_t keys, powers;  // where they begin, in bytes; queries are first
  int64_t bytes;
};

// kFours: fours of values that a thread has of each row.
template <class T, int kFours>
struct AttendPrefill {
  using C = Compute<T>;
  // Twice as many threads: so a thread gets as few registers as leave room for a second block, which computes while the
  // first one loads.
  static constexpr int kMaxThreads = sizeof(C) == 8 ? kThreads : 2 * kThreads;
  static constexpr int kValues = kFours * kTile;  // that a block has of each row
  static constexpr int kPowerRow = kTile + kPer;
  static constexpr int kPack = device::pack_size<T>();
  struct Shared {
    int query[kTile], head[kTile];  // of each row
    KeyRange range[kTile];
    int64_t mask[kTile];
  };
  struct Square {
    Four<C> row[kPer];
  };
  struct Sums {
    Four<C> row[kPer][kFours];
  };

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

    PerThread<Sums, kThreads> sums;
    PerThread<Four<C>, kThreads> top, total;
    PerThread<Square, kThreads> score;
    b.threads([&](int t, Shared& s) {
      UNROLL for (int i = 0; i < kPer; ++i) {
        top[t].at[i] = kUnseen<C>;
        total[t].at[i] = 0;
        UNROLL for (int f = 0; f < kFours; ++f) { UNROLL for (int c = 0; c < kPer; ++c) sums[t].row[i][f].at[c] = 0; }
      }
      if (layout.resident)
        for (int c = 0; c < layout.chunks; ++c)
          load_queries(t, s, b.template dynamic<C>(s) + c * kTile * layout.row, batch, rows, c);
    });

    // Where the softmax itself is wanted, a second pass writes it, with the totals that the first has found.
    const int passes = scores && stage == ScoresOutput::softmax ? 2 : 1;
    for (int pass = 0; pass < passes; ++pass) {
      for (int key = first; key < end; key += kTile) {
        const int count = end - key < kTile ? end - key : kTile;
        meet(b, score, batch, kv_head, rows, key, count, part);
        if (pass == 1) {
          b.threads([&](int t, Shared& s) {
            each(t, score[t], [&](int i, int row, int j, C& one) {
              if (row >= rows || j >= count || part != 0) return;
              const C power = exponential(one - base_of(top[t].at[i]));
              const bool blind = s.range[row].end <= s.range[row].first || total[t].at[i] == 0;
              scores[score_at(s, batch, row) + key + j] = T(blind ? C(0) : power / total[t].at[i]);
            });
          });
          continue;
        }
        PerThread<Four<C>, kThreads> tile_top;
        b.template reduce_groups<kSide>(
            tile_top,
            [&](int t) {
              Four<C> most;
              UNROLL for (int i = 0; i < kPer; ++i) {
                const Four<C>& row = score[t].row[i];
                most.at[i] = larger_score(larger_score(row.at[0], row.at[1]), larger_score(row.at[2], row.at[3]));
              }
              return most;
            },
            LargerOfFour<C>());
        b.threads([&](int t, Shared& s) {
          UNROLL for (int i = 0; i < kPer; ++i) {
            const C now = larger_score(top[t].at[i], tile_top[t].at[i]), base = base_of(now);
            const C shrink = exponential(top[t].at[i] - base);
            top[t].at[i] = now;
            C all = total[t].at[i] * shrink;
            UNROLL for (int f = 0; f < kFours; ++f) {
              UNROLL for (int c = 0; c < kPer; ++c) sums[t].row[i][f].at[c] *= shrink;
            }
            C* const powers = b.template dynamic<C>(s, layout.powers) + (t / kSide * kPer + i) * kPowerRow;
            UNROLL for (int j = 0; j < kPer; ++j) {
              const C power = exponential(score[t].row[i].at[j] - base);
              all += power;
              powers[t % kSide + j * kSide] = power;
            }
            total[t].at[i] = all;
          }
          const int own = seen - key < count ? seen - key : count;
          load_values(t, b.template dynamic<C>(s, layout.keys), batch, kv_head, part, key, own);
        });
        b.threads([&](int t, Shared& s) { add_values(b, t, s, sums[t]); });
      }
      if (pass == 1) break;
      b.template reduce_groups<kSide>(
          total, [&](int t) { return total[t]; }, SumOfFour<C>());
      if (sinks.sinks) add_sinks(b, sums, top, total, rows);
      b.threads([&](int t, Shared& s) { write(t, s, sums[t], total[t], batch, rows, part); });
    }
  }

 private:
  // f(i, row, key, value) for each score of a thread.
  template <class F>
  DEVICE_FN void each(int t, Square& square, F f) const {
    UNROLL for (int i = 0; i < kPer; ++i) {
      UNROLL for (int j = 0; j < kPer; ++j) f(i, t / kSide * kPer + i, t % kSide + j * kSide, square.row[i].at[j]);
    }
  }
  DEVICE_FN int64_t score_at(const Shared& s, int64_t batch, int row) const {
    return ((batch * heads + s.head[row]) * visible.queries + s.query[row]) * visible.keys;
  }

  // Puts `count` values from the address into shared memory as kPack ones, zeros after them.
  DEVICE_FN static void put(C* to, const T* from, int count, bool aligned) {
    constexpr int kStep = device::pack_size<C>();
    Pack<T, kPack> pack{};
    if (count > 0) pack = device::load_pack<kPack>(from, aligned, count < kPack ? count : kPack);
    UNROLL for (int i = 0; i < kPack; i += kStep) {
      Pack<C, kStep> wide;
      UNROLL for (int j = 0; j < kStep; ++j) wide.at[j] = i + j < count ? C(pack.at[i + j]) : C(0);
      *reinterpret_cast<Pack<C, kStep>*>(to + i) = wide;
    }
  }
  DEVICE_FN void load_queries(int t, const Shared& s, C* to, int64_t batch, int rows, int chunk) const {
    for (int i = t; i < kTile * packs.divisor(); i += kThreads) {
      int64_t pack;
      const int row = int(packs(i, pack)), column = int(pack) * kPack, left = head_size - chunk * layout.depth - column;
      const T* from = q.at(batch, s.head[row], s.query[row]) + chunk * layout.depth + column;
      put(to + row * layout.row + column, from, row < rows ? left : 0, aligned);
    }
  }
  DEVICE_FN void load_keys(int t, C* to, int64_t batch, int64_t kv_head, int key, int count, int chunk) const {
    for (int i = t; i < kTile * packs.divisor(); i += kThreads) {
      int64_t pack;
      const int row = int(packs(i, pack)), column = int(pack) * kPack, left = head_size - chunk * layout.depth - column;
      const T* from = k.at(batch, kv_head, key + row) + chunk * layout.depth + column;
      put(to + row * layout.row + column, from, row < count ? left : 0, aligned);
    }
  }
  DEVICE_FN void load_values(int t, C* to, int64_t batch, int64_t kv_head, int part, int key, int count) const {
    constexpr int kPacks = kValues / kPack;
    for (int i = t; i < kTile * kPacks; i += kThreads) {
      const int row = i / kPacks, column = i % kPacks * kPack, from = part * kValues + column;
      put(to + row * kValues + column, v.at(batch, kv_head, key + row) + from, row < count ? value_size - from : 0,
          values_aligned);
    }
  }

  // Scores of the tile's queries and of `count` keys from `key` on.
  DEVICE_FN void meet(Block<Shared>& b, PerThread<Square, kThreads>& score, int64_t batch, int64_t kv_head, int rows,
                      int key, int count, int part) const {
    for (int chunk = 0; chunk < layout.chunks; ++chunk) {
      const int slot = layout.resident ? chunk * kTile * layout.row : 0;
      b.threads([&](int t, Shared& s) {
        if (!layout.resident) load_queries(t, s, b.template dynamic<C>(s), batch, rows, chunk);
        load_keys(t, b.template dynamic<C>(s, layout.keys), batch, kv_head, key, count, chunk);
      });
      b.threads([&](int t, Shared& s) {
        Square square = score[t];
        if (chunk == 0) each(t, square, [](int, int, int, C& one) { one = 0; });
        const C* const queries = b.template dynamic<C>(s) + slot + t / kSide * kPer * layout.row;
        const C* const keys = b.template dynamic<C>(s, layout.keys) + t % kSide * layout.row;
        NO_UNROLL for (int d = 0; d < layout.depth; d += kPer) {
          Four<C> one[kPer];
          UNROLL for (int i = 0; i < kPer; ++i) one[i] = four(queries + i * layout.row + d);
          UNROLL for (int j = 0; j < kPer; ++j) {
            const Four<C> other = four(keys + j * kSide * layout.row + d);
            UNROLL for (int i = 0; i < kPer; ++i) {
              UNROLL for (int c = 0; c < kPer; ++c) square.row[i].at[j] += one[i].at[c] * other.at[c];
            }
          }
        }
        if (chunk == layout.chunks - 1) mask(t, s, square, batch, rows, key, count, part);
        score[t] = square;
      });
    }
  }

  // From products to masked scores.
  DEVICE_FN void mask(int t, const Shared& s, Square& square, int64_t batch, int rows, int key, int count,
                      int part) const {
    each(t, square, [&](int, int row, int j, C& one) {
      if (row >= rows || j >= count) {
        one = kUnseen<C>;
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
      one = seen ? visible.masked(one, s.mask[row], at) : kUnseen<C>;
      if (shown && stage == ScoresOutput::seen) show(seen ? one : C(0));
      if (shown && stage == ScoresOutput::masked) show(one);
    });
  }

  DEVICE_FN void add_values(const Block<Shared>& b, int t, const Shared& s, Sums& sums) const {
    const C* const powers = b.template dynamic<C>(s, layout.powers) + t / kSide * kPer * kPowerRow;
    const C* const values = b.template dynamic<C>(s, layout.keys) + t % kSide * kPer;
    NO_UNROLL for (int key = 0; key < kTile; key += kPer) {
      Four<C> power[kPer];
      UNROLL for (int i = 0; i < kPer; ++i) power[i] = four(powers + i * kPowerRow + key);
      UNROLL for (int n = 0; n < kPer; ++n) {
        UNROLL for (int f = 0; f < kFours; ++f) {
          const Four<C> value = four(values + (key + n) * kValues + f * kTile);
          UNROLL for (int i = 0; i < kPer; ++i) {
            UNROLL for (int c = 0; c < kPer; ++c) sums.row[i][f].at[c] += power[i].at[n] * value.at[c];
          }
        }
      }
    }
  }

  // The score without a key comes last.
  DEVICE_FN void add_sinks(Block<Shared>& b, PerThread<Sums, kThreads>& sums, PerThread<Four<C>, kThreads>& top,
                           PerThread<Four<C>, kThreads>& total, int rows) const {
    b.threads([&](int t, Shared& s) {
      UNROLL for (int i = 0; i < kPer; ++i) {
        const int row = t / kSide * kPer + i;
        const C sink = row < rows ? sinks.at(s.head[row]) : kUnseen<C>;
        const C now = larger_score(top[t].at[i], sink), base = base_of(now), shrink = exponential(top[t].at[i] - base);
        top[t].at[i] = now;
        total[t].at[i] = total[t].at[i] * shrink + exponential(sink - base);
        UNROLL for (int f = 0; f < kFours; ++f) {
          UNROLL for (int c = 0; c < kPer; ++c) sums[t].row[i][f].at[c] *= shrink;
        }
      }
    });
  }

  DEVICE_FN void write(int t, const Shared& s, const Sums& sums, const Four<C>& total, int64_t batch, int rows,
                       int part) const {
    UNROLL for (int i = 0; i < kPer; ++i) {
      const int row = t / kSide * kPer + i;
      if (row >= rows) return;
      T* const to = y.at(batch, s.head[row], s.query[row]);
      const C inverse = total.at[i] == 0 ? C(0) : C(1) / total.at[i];
      UNROLL for (int f = 0; f < kFours; ++f) {
        UNROLL for (int c = 0; c < kPer; ++c) {
          const int column = part * kValues + f * kTile + t % kSide * kPer + c;
          if (column < value_size) to[column] = T(total.at[i] == 0 ? C(0) : sums.row[i][f].at[c] * inverse);
        }
      }
    }
  }
};

template <class C, class T>
TileLayout layout_of(int64_t head_size, int values) {
  constexpr int kPack = device::pack_size<T>();
  constexpr int64_t kMostDepth = sizeof(C) == 8 ? 64 : 128, kMostResident = 70 * 1024;
  TileLayout layout;
  layout.depth = int(std::min((head_size + kPack - 1) / kPack * kPack, kMostDepth));
  layout.depth = (layout.depth + kPer - 1) / kPer * kPer;
  layout.chunks = int((head_size + layout.depth - 1) / layout.depth);
  layout.row = layout.depth + kPer;  // so that neighbouring rows begin in other banks
  const int64_t chunk = int64_t(kTile) * layout.row * int64_t(sizeof(C));
  layout.resident = layout.chunks * chunk <= kMostResident;
  layout.keys = layout.resident ? layout.chunks * chunk : chunk;
  layout.powers = layout.keys + std::max(chunk, int64_t(kTile) * values * int64_t(sizeof(C)));
  layout.bytes = layout.powers + int64_t(kTile) * (kTile + kPer) * int64_t(sizeof(C));
  return layout;
}

template <class T, int kFours>
void run(Context& context, const Attend& p) {
  using Kernel = AttendPrefill<T, kFours>;
  using C = typename Kernel::C;
  const TileLayout layout = layout_of<C, T>(p.head_size, Kernel::kValues);
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
  device::block_kernel<typename Kernel::Shared>(context.stream(), {blocks, kThreads, layout.bytes}, kernel);
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
