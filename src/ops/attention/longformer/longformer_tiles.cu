// Tiles of 64 queries and 64 keys: a block has its queries in shared memory, where keys and values take turns. Heads of
// more than 64 values are shared out to more blocks.
#include "device/divide.h"
#include "device/launch.h"
#include "ops/attention/dense/tile_softmax.h"
#include "ops/attention/longformer/longformer_attention.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Divider;
using device::PerThread;

static_assert(kTile == kLongformerTile);

template <class T>
struct LongformerTiles {
  static constexpr int kMaxThreads = 2 * kTileThreads;  // so that two blocks find registers in a multiprocessor
  static constexpr int kPack = device::pack_size<T>();
  struct Shared {
    int row[kTile];  // of each query whose result is wanted, else below zero
    bool padding[kTile];
    int key[kTile];  // of those at hand, below zero where there is none
    float added[kTile];
  };
  using State = TileSoftmax<float, 1>;

  LongformerView<T, kTile> view;
  HeadView<T> y;
  int size, parts, depth;     // depth: of a row in shared memory, but for what keeps rows in other banks
  int64_t keys_at, probs_at;  // bytes in shared memory, where queries are first
  float scale;
  Divider packs;  // of a row
  bool aligned;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    const int64_t block = b.index() / parts;
    const int part = int(b.index() % parts);
    int batch, head;
    const int tiles = view.tiles(block, batch, head);
    for (int n = 0; n < tiles; ++n) {
      const LongformerTile tile = view.tile(block, batch, n);
      if (tile.queries > 0) attend(b, s, tile, batch, head, part);
    }
  }

 private:
  DEVICE_FN void attend(Block<Shared>& b, const Shared& shared, const LongformerTile& tile, int batch, int head,
                        int part) const {
    PerThread<State, kTileThreads> state;
    b.threads([&](int t, Shared& s) {
      state[t].clear();
      if (t >= kTile) return;
      const int row = t < tile.queries ? view.row_of(tile, batch, t) : -1;
      s.row[t] = row >= 0 && view.writes(tile, batch, row) ? row : -1;
      s.padding[t] = row >= 0 && view.is_padding(batch, row);
    });
    const bool looks = b.reduce(
        0, [&](int t) { return int(t < kTile && shared.row[t] >= 0 && !shared.padding[t]); },
        [](int a, int c) { return a | c; });
    if (looks) {
      const LongformerRows<T> from = view.rows_of(tile, batch, head);
      b.threads([&](int t, Shared& s) {
        load_rows(t, b.template dynamic<float>(s), from.q, [&](int query) { return s.row[query]; });
      });
      const int neighbours = tile.end_key - tile.first_key;
      for (int at = 0; at < neighbours + tile.listed;) {
        const bool of_list = at >= neighbours;
        step(b, state, tile, from, batch, part, of_list ? at - neighbours : at, of_list);
        at = !of_list && at + kTile > neighbours ? neighbours : at + kTile;
      }
      PerThread<Four<float>, kTileThreads> row_sum;
      b.template reduce_groups<kTileSide>(
          row_sum, [&](int t) { return state[t].row_sum; }, SumOfFour());
      b.threads([&](int t, Shared&) { state[t].row_sum = row_sum[t]; });
    }
    b.threads([&](int t, Shared& s) { write(t, s, tile, state[t], batch, head, part); });
  }

  // The n-th of the neighbours or of the listed keys, or less than zero.
  DEVICE_FN int key_of(const LongformerTile& tile, int batch, int n, bool of_list) const {
    if (of_list) return n < tile.listed ? view.token(batch, n) : -1;
    return tile.first_key + n < tile.end_key ? tile.first_key + n : -1;
  }

  // Meets 64 keys.
  DEVICE_FN void step(Block<Shared>& b, PerThread<State, kTileThreads>& state, const LongformerTile& tile,
                      const LongformerRows<T>& from, int batch, int part, int at, bool of_list) const {
    const auto key_at = [&](int n) { return key_of(tile, batch, at + n, of_list); };
    b.threads([&](int t, Shared& s) {
      load_rows(t, b.template dynamic<float>(s, keys_at), from.k, key_at);
      if (t >= kTile) return;
      s.key[t] = key_at(t);
      s.added[t] = s.key[t] < 0 ? 0.f : view.added(batch, s.key[t]);
    });
    PerThread<Square<float>, kTileThreads> score;
    b.threads([&](int t, Shared& s) {
      Square<float> square{};
      add_products(square, t, b.template dynamic<float>(s), b.template dynamic<float>(s, keys_at), depth + kTileEach,
                   depth);
      UNROLL for (int j = 0; j < kTileEach; ++j) {
        const int key = s.key[tile_key(t, j)];
        const float added = s.added[tile_key(t, j)];
        UNROLL for (int i = 0; i < kTileEach; ++i) {
          float& one = square.row[i].at[j];
          one = key >= 0 && tile.sees(tile_query(t, i), key, of_list) ? one * scale + added : kMaskedScore<float>;
        }
      }
      score[t] = square;
    });
    PerThread<Four<float>, kTileThreads> tile_max;
    b.template reduce_groups<kTileSide>(
        tile_max, [&](int t) { return max_of(score[t]); }, MaxOfFour());
    b.threads([&](int t, Shared& s) {
      state[t].accumulate(t, score[t], tile_max[t], b.template dynamic<float>(s, probs_at));
      load_values(t, b.template dynamic<float>(s, keys_at), from.v, part, key_at);
    });
    b.threads([&](int t, Shared& s) {
      state[t].add_values(t, b.template dynamic<float>(s, probs_at), b.template dynamic<float>(s, keys_at));
    });
  }

  // row_of tells each row, below zero for one of zeros.
  template <class F>
  DEVICE_FN void load_rows(int t, float* to, const T* from, F row_of) const {
    for (int i = t; i < kTile * packs.divisor(); i += kTileThreads) {
      int64_t pack;
      const int place = int(packs(i, pack)), column = int(pack) * kPack, row = row_of(place);
      put_wide<kPack>(to + place * (depth + kTileEach) + column, from + (row < 0 ? 0 : row) * view.row_step + column,
                      row < 0 ? 0 : size - column, aligned);
    }
  }
  template <class F>
  DEVICE_FN void load_values(int t, float* to, const T* from, int part, F row_of) const {
    constexpr int kPacks = kTile / kPack;
    for (int i = t; i < kTile * kPacks; i += kTileThreads) {
      const int place = i / kPacks, column = part * kTile + i % kPacks * kPack, row = row_of(place);
      put_wide<kPack>(to + i * kPack, from + (row < 0 ? 0 : row) * view.row_step + column, row < 0 ? 0 : size - column,
                      aligned);
    }
  }

  DEVICE_FN void write(int t, const Shared& s, const LongformerTile& tile, const State& state, int batch, int head,
                       int part) const {
    UNROLL for (int i = 0; i < kTileEach; ++i) {
      const int query = tile_query(t, i), row = s.row[query], first = part * kTile + tile_value(t, 0);
      if (row < 0) continue;
      const float row_sum = s.padding[query] ? 0.f : state.row_sum.at[i];
      if (view.is_shared(tile)) {
        const int64_t at = view.shares_of(batch, head, query) + tile.share;
        UNROLL for (int c = 0; c < kTileEach; ++c) {
          if (first + c < size) view.partial.acc[at * size + first + c] = state.acc[0].row[i].at[c];
        }
        if (first == 0) {
          view.partial.row_max[at] = state.row_max.at[i];
          view.partial.row_sum[at] = row_sum;
        }
        continue;
      }
      T* const to = y.at(batch, head, row) + first;
      const float inverse = row_sum == 0 ? 0.f : 1.f / row_sum;
      UNROLL for (int c = 0; c < kTileEach; ++c) {
        if (first + c < size) to[c] = T(row_sum == 0 ? 0.f : state.acc[0].row[i].at[c] * inverse);
      }
    }
  }
};

template <class T>
void run(Context& context, const LongformerProblem& p, const GlobalTokens& tokens, const LongformerSplits& partial) {
  using Kernel = LongformerTiles<T>;
  constexpr int kPack = Kernel::kPack;
  const int packs = int((p.size + kPack - 1) / kPack), depth = packs * kPack, parts = int((p.size + kTile - 1) / kTile);
  const int64_t rows_bytes = int64_t(kTile) * (depth + kTileEach) * int64_t(sizeof(float));
  const int64_t values_bytes = int64_t(kTile) * kTile * int64_t(sizeof(float));
  const int64_t probs_at = rows_bytes + std::max(rows_bytes, values_bytes);
  const LongformerView<T, kTile> view(p, tokens, partial);
  device::block_kernel<typename Kernel::Shared>(
      context.stream(),
      {checked_product(view.blocks(), parts), kTileThreads,
       probs_at + int64_t(kTile) * kProbRow * int64_t(sizeof(float))},
      Kernel{view, p.y, int(p.size), parts, depth, rows_bytes, probs_at, float(p.scale),
             Divider(packs, int64_t(kTile) * packs), packs_fit<kPack, T>(p)});
}

}  // namespace

void longformer_tiles(Context& context, const LongformerProblem& problem, const GlobalTokens& tokens,
                      const LongformerSplits& partial) {
  dispatch(TypeList<float, Half>{}, problem.type, [&]<class T> { run<T>(context, problem, tokens, partial); });
}

}  // namespace encore::ops
