// 32 queries as columns of mma with 16 keys, laid out as attend_grouped_decode.h has it: keys and values are
// read straight into the registers of the lanes that need them. A warp takes every fourth tile of the keys that the
// queries see, neighbours first, with the keys and the values of the next one on their way, and keeps up its own
// softmax. Warps are combined at the end.
#include "device/launch.h"
#include "device/mma_fragments.h"
#include "ops/attention/dense/group_softmax.h"
#include "ops/attention/longformer/longformer_attention.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::FragmentC;
using device::PerThread;
using device::Warp;

constexpr int kWarps = 4, kThreads = 32 * kWarps, kKeys = 16, kQueries = kLongformerGroup, kTiles = kQueries / 8;

// Heads of up to 32 kChunks values.
template <int kChunks>
struct LongformerGroup {
  using T = Half;
  static constexpr int kSpans = kChunks / 2, kWidth = 32 * kChunks;
  // Blocks that are to fit into a multiprocessor, as registers allow.
  static constexpr int kRoom = kChunks == 2 ? 3 : 2, kMaxThreads = kRoom * kThreads;
  using State = GroupSoftmax<T, kTiles, kSpans>;
  using OfQueries = typename State::OfRows;
  static constexpr int kAccRow = State::kAccRow;
  static constexpr int64_t kAccBytes = int64_t(kWarps) * kQueries * kAccRow * int64_t(sizeof(float));
  using Words = device::WordsOf<T, 8>;

  struct Shared {
    Words q[kTiles][kChunks][32];
    int row[kQueries];  // of each query whose result is wanted, else below zero
    bool padding[kQueries];
    float row_max[kWarps][kQueries], row_sum[kWarps][kQueries];
  };
  struct Marks {  // of a lane's two keys
    int key[2];   // below zero where there is none
    float added[2];
  };
  struct Keys {
    Words at[2][kChunks];
    Marks marks;
  };
  struct Values {
    Words at[4][kSpans];
  };
  struct Scores {
    FragmentC at[kTiles][1];
  };
  // Tiles of keys: so many of neighbours, and then those of the list.
  struct Walk {
    int near, all;
  };

  LongformerView<T, kQueries> view;
  HeadView<T> y;
  int size;
  float scale;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    int batch, head;
    const int tiles = view.tiles(b.index(), batch, head);
    for (int n = 0; n < tiles; ++n) {
      const LongformerTile tile = view.tile(b.index(), batch, n);
      if (tile.queries > 0) attend(b, s, tile, batch, head);
    }
  }

 private:
  DEVICE_FN void attend(Block<Shared>& b, const Shared& shared, const LongformerTile& tile, int batch, int head) const {
    b.threads([&](int t, Shared& s) {
      if (t >= kQueries) return;
      const int row = t < tile.queries ? view.row_of(tile, batch, t) : -1;
      s.row[t] = row >= 0 && view.writes(tile, batch, row) ? row : -1;
      s.padding[t] = row >= 0 && view.is_padding(batch, row);
    });
    const bool looks = b.reduce(
        0, [&](int t) { return int(t < kQueries && shared.row[t] >= 0 && !shared.padding[t]); },
        [](int a, int c) { return a | c; });
    Walk walk{(tile.end_key - tile.first_key + kKeys - 1) / kKeys, 0};
    walk.all = walk.near + (tile.listed + kKeys - 1) / kKeys;
    if (!looks) walk = {0, 0};
    const LongformerRows<T> from = view.rows_of(tile, batch, head);

    PerThread<Keys, kThreads> keys;
    PerThread<Values, kThreads> values;
    b.threads([&](int t, Shared& s) {
      load_keys(keys[t], from.k, tile, walk, batch, t / 32, t % 32);
      load_values(values[t], from.v, tile, walk, batch, t / 32, t % 32);
      for (int i = t; i < kTiles * kChunks * 32; i += kThreads) {
        const int lane = i % 32, chunk = i / 32 % kChunks, part = i / 32 / kChunks;
        const int row = s.row[8 * part + lane / 4], column = 32 * chunk + 8 * (lane % 4);
        s.q[part][chunk][lane] =
            words(from.q + (row < 0 ? 0 : row) * view.row_step + column, row >= 0 && column < size);
      }
    });
    device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
      const int thread = 32 * warp.index();
      PerThread<State, 32> state;
      warp.lanes([&](int lane) { state[lane].clear(); });
      for (int n = warp.index(); n < walk.all; n += kWarps) {
        PerThread<Scores, 32> scores;
        PerThread<OfQueries, 32> tile_max;
        warp.lanes([&](int lane) { scores[lane] = Scores{}; });
        UNROLL for (int c = 0; c < kChunks; ++c) {
          UNROLL for (int r = 0; r < kTiles; ++r) {
            UNROLL for (int half = 0; half < 2; ++half) {
              warp.template mma<T>([&](int lane) -> FragmentC& { return scores[lane].at[r][0]; },
                                   [&](int lane) {
                                     const Keys& of = keys[thread + lane];
                                     return device::fragment_a(of.at[0][c], of.at[1][c], half);
                                   },
                                   [&](int lane) { return device::fragment_b(s.q[r][c][lane], half); });
            }
          }
        }
        warp.lanes([&](int lane) {
          const Marks marks = keys[thread + lane].marks;
          load_keys(keys[thread + lane], from.k, tile, walk, batch, n + kWarps, lane);
          mask_and_max(scores[lane], tile_max[lane], marks, tile, n >= walk.near, is_plain(tile, walk, n), lane);
        });
        State::accumulate(warp, state, scores, tile_max, [&](int lane, int key, int span, int i) {
          return values[thread + lane].at[key][span].at[i];
        });
        warp.lanes([&](int lane) { load_values(values[thread + lane], from.v, tile, walk, batch, n + kWarps, lane); });
      }
      State::store_partial(warp, state, s.row_max[warp.index()], s.row_sum[warp.index()],
                           b.template dynamic<float>(s) + warp.index() * kQueries * kAccRow);
    });
    b.threads([&](int t, Shared& s) {
      const float* const acc = b.template dynamic<float>(s);
      for (int i = t; i < tile.queries * kWidth; i += kThreads) {
        const int query = i / kWidth, column = i % kWidth;
        if (column < size && s.row[query] >= 0)
          finish(s, acc + query * kAccRow + column, tile, batch, head, query, column);
      }
    });
  }

  DEVICE_FN static Words words(const T* from, bool there) {
    if (!there) return Words{};
    return device::words_of(device::load_pack<8>(from, true));
  }
  // The i-th key of the n-th tile, or less than zero.
  DEVICE_FN int key_of(const LongformerTile& tile, const Walk& walk, int batch, int n, int i) const {
    if (n < walk.near) {
      const int key = tile.first_key + n * kKeys + i;
      return key < tile.end_key ? key : -1;
    }
    const int place = (n - walk.near) * kKeys + i;
    return n < walk.all && place < tile.listed ? view.token(batch, place) : -1;
  }
  // A lane's part of a tile; zeros where there is no key.
  DEVICE_FN void load_keys(Keys& to, const T* from, const LongformerTile& tile, const Walk& walk, int batch, int n,
                           int lane) const {
    UNROLL for (int i = 0; i < 2; ++i) {
      const int key = key_of(tile, walk, batch, n, lane / 4 + 8 * i);
      to.marks.key[i] = key;
      to.marks.added[i] = key < 0 ? 0.f : view.added(batch, key);
      const T* const row = from + (key < 0 ? 0 : key) * view.row_step + 8 * (lane % 4);
      UNROLL for (int c = 0; c < kChunks; ++c) to.at[i][c] =
          words(row + 32 * c, key >= 0 && 32 * c + 8 * (lane % 4) < size);
    }
  }
  DEVICE_FN void load_values(Values& to, const T* from, const LongformerTile& tile, const Walk& walk, int batch, int n,
                             int lane) const {
    UNROLL for (int i = 0; i < 4; ++i) {
      const int key = key_of(tile, walk, batch, n, device::k_of(lane, i));
      const T* const row = from + (key < 0 ? 0 : key) * view.row_step + 8 * (lane / 4);
      UNROLL for (int span = 0; span < kSpans; ++span) to.at[i][span] =
          words(row + 64 * span, key >= 0 && 64 * span + 8 * (lane / 4) < size);
    }
  }
  // Whether every query sees all of the n-th tile's keys.
  DEVICE_FN static bool is_plain(const LongformerTile& tile, const Walk& walk, int n) {
    const int first = tile.first_key + n * kKeys, last = first + kKeys - 1;
    return n < walk.near && last < tile.end_key && tile.sees(0, last, false) && tile.sees(kQueries - 1, first, false);
  }
  // Scales and masks the scores of a tile, and finds each lane's maxima.
  DEVICE_FN void mask_and_max(Scores& scores, OfQueries& tile_max, const Marks& marks, const LongformerTile& tile,
                              bool of_list, bool plain, int lane) const {
    UNROLL for (int r = 0; r < kTiles; ++r) {
      FragmentC& scored = scores.at[r][0];
      UNROLL for (int i = 0; i < 4; ++i) scored.at[i] = scored.at[i] * scale + marks.added[i / 2];
      if (!plain) {
        UNROLL for (int i = 0; i < 4; ++i) {
          const int key = marks.key[i / 2];
          if (key < 0 || !tile.sees(8 * r + device::c_column(lane, i), key, of_list))
            scored.at[i] = kMaskedScore<float>;
        }
      }
      UNROLL for (int e = 0; e < 2; ++e) tile_max.at[r][e] = max_score(scored.at[e], scored.at[e + 2]);
    }
  }
  // `acc` is the first warp's.
  DEVICE_FN void finish(const Shared& s, const float* acc, const LongformerTile& tile, int batch, int head, int query,
                        int column) const {
    float row_max = kMaskedScore<float>, sum = 0, row_sum = 0;
    UNROLL for (int w = 0; w < kWarps; ++w) row_max = max_score(row_max, s.row_max[w][query]);
    const float base = finite_max(row_max);
    UNROLL for (int w = 0; w < kWarps; ++w) {
      const float correction = exponential(s.row_max[w][query] - base);
      sum += acc[w * kQueries * kAccRow] * correction;
      row_sum += s.row_sum[w][query] * correction;
    }
    if (!view.is_shared(tile)) {
      y.at(batch, head, s.row[query])[column] = T(row_sum == 0 || s.padding[query] ? 0.f : sum / row_sum);
      return;
    }
    const int64_t at = view.shares_of(batch, head, query) + tile.share;
    view.partial.acc[at * size + column] = sum;
    if (column != 0) return;
    view.partial.row_max[at] = row_max;
    view.partial.row_sum[at] = row_sum;
  }
};

template <int kChunks>
void run(Context& context, const LongformerProblem& p, const GlobalTokens& tokens, const LongformerSplits& partial) {
  using Kernel = LongformerGroup<kChunks>;
  const LongformerView<Half, kQueries> view(p, tokens, partial);
  device::block_kernel<typename Kernel::Shared>(context.stream(), {view.blocks(), kThreads, Kernel::kAccBytes},
                                                Kernel{view, p.y, int(p.size), float(p.scale)});
}

}  // namespace

bool fits_longformer_group(const LongformerProblem& p) {
  return p.type == Type::f16 && p.size <= 128 && packs_fit<8, Half>(p);
}

void longformer_group(Context& context, const LongformerProblem& problem, const GlobalTokens& tokens,
                      const LongformerSplits& partial) {
  if (problem.size <= 64)
    run<2>(context, problem, tokens, partial);
  else
    run<4>(context, problem, tokens, partial);
}

}  // namespace encore::ops
