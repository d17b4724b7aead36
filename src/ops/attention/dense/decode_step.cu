#include "ops/attention/dense/decode_step.h"

#include "device/cluster.h"
#include "device/device.h"
#include "device/divide_small.h"
#include "device/prefetch.h"
#include "ops/attention/dense/dense_rows.h"
#include "ops/attention/kv_cache/add_rows.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Cluster;
using device::Pack;
using device::PerThread;
using device::Warp;

// A cluster has the heads that share one of keys. Most warps of its blocks look at the keys that were there before, as
// in AttendGroupedDecode. The others rotate the new row meanwhile; the first block's put its key and values into the
// cache, and look at that key themselves.
template <class T, int kChunks>
struct DecodeStep {
  using Group = AttendGroupedDecode<T, kChunks, 1, DenseRows<T, 8>>;
  using State = typename Group::State;
  using Tile = typename Group::Tile;
  using Keys = typename Group::Keys;
  using Values = typename Group::Values;
  static constexpr int kRows = 8, kKeys = Group::kKeys, kWidth = Group::kWidth, kWidthLog2 = kChunks == 2 ? 6 : 7;
  static_assert(kWidth == 1 << kWidthLog2);
  static constexpr int kOldWarps = 10, kNewWarps = kChunks / 2, kWarps = kOldWarps + 1;  // that have accumulators
  static constexpr int kOldThreads = 32 * kOldWarps, kThreads = kOldThreads + 32 * kNewWarps;
  static constexpr int kMaxThreads = kThreads, kStep = kOldWarps * kKeys;
  static constexpr int kPack = 4, kPacks = 4;  // of values of a row as they are finished
  static constexpr bool kBeginsEarly = true;
  static_assert(AddPacks<T>::kPack == 8, "a pack is eight values of a tile's row");
  static constexpr int kAccOfWarp = kRows * State::kAccRow;
  static constexpr int64_t kDynamicBytes = int64_t(kWarps) * kAccOfWarp * int64_t(sizeof(float));
  struct Shared {
    Words q[1][kChunks][32];
    Words fresh[2][kWidth / 8];  // the new key, and its values
    int64_t mask_row[kRows];
    KeyRange range[kRows];
    float row_max[kWarps][kRows], row_sum[kWarps][kRows];
    alignas(16) float combined[kRows][kWidth];  // of the block
    float combined_max[kRows], combined_sum[kRows];
    int length;
  };
  // Of the keys that were there before, those that a block looks at; and those that each row sees.
  struct Share {
    int old, first, end;
    KeyRange all;
    Slots slots;
  };
  // Where a lane's part of its warp's first tile is, in rows of the cache; null where there is none.
  struct Places {
    const T *keys[2], *values[4];
  };

  Group group;
  AddPacks<T> add;
  int cluster_log2;  // of its blocks
  bool y_in_packs;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& shared) const {
    const auto& source = group.source;
    const int rank = rank_of(b);
    Tile tile = tile_of(b);
    PerThread<Keys, kThreads> keys;
    PerThread<Values, kThreads> values;
    b.threads([&](int t, Shared& s) {
      if (t >= kOldThreads) {
        const int64_t likely = add.likely_position(tile.batch, tile.batch, 0);
        add.prefetch_angles(likely, t - kOldThreads);
        clear(s, tile, t - kOldThreads);
        b.wait();
        take_new(s, tile, rank == 0, likely, t - kOldThreads);
        return;
      }
      Tile known = tile;
      known.length = source.visible.likely_length(tile.batch);
      prefetch_keys(known, rank, t);
      // Asked for where they are likely to be, before that is known.
      NO_UNROLL for (bool sure = false; !sure;) {
        const Places places = places_of(known, rank, t);
        b.wait();
        load(keys[t], values[t], places, t % 32);
        const int length = source.visible.length(tile.batch);
        sure = length == known.length;
        known.length = length;
      }
      if (t == 0) s.length = known.length;
      if (t < tile.rows) {
        s.range[t] = source.range(known, t);
        s.mask_row[t] = source.mask_row(known, t);
      }
    });
    tile.length = shared.length;
    const Share share = share_of(tile, rank);
    const float factor = source.score_scale(group.scale);
    device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
      const int w = warp.index();
      if (w >= kWarps) return;
      PerThread<State, 32> state;
      warp.lanes([&](int lane) { state[lane].clear(); });
      const bool is_old = w < kOldWarps;
      if (!is_old)
        warp.lanes([&](int lane) { take_fresh(s, keys[kOldThreads + lane], values[kOldThreads + lane], lane); });
      // Of the new key there is one tile, which the first block has.
      const int first = is_old ? share.first + w * kKeys : share.old;
      const int end = is_old ? share.end : rank == 0 ? tile.length : share.old;
      group.attend_keys(warp, b, s, state, keys, values, {tile, share.slots, share.all, first, end, kStep, factor});
      State::store_partial(warp, state, s.row_max[w], s.row_sum[w], acc_in(b, s) + w * kAccOfWarp);
    });
    b.threads([&](int t, Shared& s) {
      constexpr int kMany = 2;
      for (int i = t; i < tile.rows * (kWidth / kMany); i += kThreads) {
        const int row = i / (kWidth / kMany), column = i % (kWidth / kMany) * kMany;
        const float* const acc = acc_in(b, s) + row * State::kAccRow + column;
        const auto combined = State::template combine<kMany>(s.row_max, s.row_sum, acc, row, kMaskedScore<float>);
        *reinterpret_cast<Pack<float, kMany>*>(&s.combined[row][column]) = combined.acc;
        if (column == 0) s.combined_max[row] = combined.row_max, s.combined_sum[row] = combined.row_sum;
      }
    });
  }

  // Each block finishes its part of the values of all rows, in packs. Lanes that are the same modulo kPacks have one,
  // each of another block.
  DEVICE_FN void join(Block<Shared>& b, const Shared&, const Cluster<Shared>& cluster) const {
    const Tile tile = tile_of(b);
    const int in_cluster = 1 << cluster_log2, all = tile.rows * (kWidth / kPack);
    const int own = (all + in_cluster - 1) >> cluster_log2, from = rank_of(b) * own;
    const int end = from + own < all ? from + own : all;
    device::for_each_warp(b, [&](const Warp& warp, Shared&) {
      for (int first = from + warp.index() * kPacks; first < end; first += kThreads / 32 * kPacks)
        finish(warp, cluster, tile, first, end);
    });
  }

 private:
  static_assert(32 / kPacks == device::kMostInCluster);
  struct Part {
    float acc[kPack], row_max, row_sum, sink, base;
  };

  DEVICE_FN int rank_of(const Block<Shared>& b) const { return int(b.index()) & ((1 << cluster_log2) - 1); }
  // Without its length.
  DEVICE_FN Tile tile_of(const Block<Shared>& b) const {
    int kv_head;
    const int batch = group.source.by_kv_heads(int(b.index()) >> cluster_log2, kv_head);
    return {batch, kv_head, 0, group.source.fold.rows, 0};
  }
  DEVICE_FN Share share_of(const Tile& tile, int rank) const {
    Share share;
    share.old = tile.length - (tile.length > 0);
    share.all = group.source.range(tile, 0);  // all rows are of one query
    share.slots = {share.all.first, share.all.end, share.all.end, share.all.first};
    const int tiles = share.old > share.all.first ? (share.old - share.all.first + kKeys - 1) / kKeys : 0;
    const int own = (tiles + (1 << cluster_log2) - 1) >> cluster_log2;
    share.first = share.all.first + rank * own * kKeys;
    share.end = share.old - share.first > own * kKeys ? share.first + own * kKeys : share.old;
    return share;
  }

  // Those that the first tiles look at, and their values, have been in the cache since steps before this one. They are
  // brought nearer before it is known how many there are: as many as there are by now, or one less.
  DEVICE_FN void prefetch_keys(const Tile& tile, int rank, int t) const {
    constexpr int kLine = 64;  // values
    const Share share = share_of(tile, rank);
    const int key = share.first + t;
    if (key >= share.end) return;
    UNROLL for (int column = 0; column < kWidth; column += kLine) {
      if (column >= group.head_size) break;
      device::prefetch(group.source.k.at(tile.batch, tile.kv_head, key) + column);
      device::prefetch(group.source.v.at(tile.batch, tile.kv_head, key) + column);
    }
  }
  DEVICE_FN Places places_of(const Tile& tile, int rank, int t) const {
    const Share share = share_of(tile, rank);
    const int slot = share.first + t / 32 * kKeys;
    // By a branch: compilers leave it ahead of the wait.
    const auto in = [&](const auto& rows, int key) {
      return key < share.end ? rows.at(tile.batch, tile.kv_head, key) : nullptr;
    };
    Places places;
    UNROLL for (int i = 0; i < 2; ++i) places.keys[i] = in(group.source.k, slot + t % 32 / 4 + 8 * i);
    UNROLL for (int i = 0; i < 4; ++i) places.values[i] = in(group.source.v, slot + device::k_of(t % 32, i));
    return places;
  }
  DEVICE_FN void load(Keys& keys, Values& values, const Places& places, int lane) const {
    const auto words = [](const T* row, int column, int size) {
      return row && column < size ? device::load_words<8>(row + column) : Words{};
    };
    UNROLL for (int i = 0; i < 2; ++i) {
      UNROLL for (int c = 0; c < kChunks; ++c) keys.at[i][c] =
          words(places.keys[i], 32 * c + 8 * (lane % 4), group.head_size);
    }
    UNROLL for (int i = 0; i < 4; ++i) {
      UNROLL for (int n = 0; n < Group::kSpans; ++n) values.at[i][n] =
          words(places.values[i], 64 * n + 8 * (lane / 4), group.value_size);
    }
  }

  // All rows are of one query.
  DEVICE_FN static int head_of(const Tile& tile, int row) { return tile.kv_head * tile.rows + row; }
  // Of all warps.
  DEVICE_FN static float* acc_in(const Block<Shared>& b, Shared& s) { return b.template dynamic<float>(s); }

  DEVICE_FN void finish(const Warp& warp, const Cluster<Shared>& cluster, const Tile& tile, int first, int end) const {
    constexpr int kInRow = kWidth / kPack;
    PerThread<Part, 32> parts;
    PerThread<float, 32> tile_max;
    warp.lanes([&](int lane) {
      const int pack = first + lane % kPacks, row = pack / kInRow, rank = lane / kPacks;
      Part& part = parts[lane];
      part = {{}, kMaskedScore<float>, 0, kMaskedScore<float>, 0};
      if (pack < end && rank >> cluster_log2 == 0) {
        const Shared& of = cluster.shared(rank);
        const auto acc = *reinterpret_cast<const Pack<float, kPack>*>(&of.combined[row][pack % kInRow * kPack]);
        UNROLL for (int i = 0; i < kPack; ++i) part.acc[i] = acc.at[i];
        part.row_max = of.combined_max[row], part.row_sum = of.combined_sum[row];
        part.sink = group.sinks.at(head_of(tile, row));
      }
      tile_max[lane] = max_score(part.row_max, part.sink);
    });
    warp.template reduce_columns<kPacks>([&](int lane) -> float& { return tile_max[lane]; },
                                         [](float a, float c) { return max_score(a, c); });
    warp.lanes([&](int lane) {
      Part& part = parts[lane];
      part.base = finite_max(tile_max[lane]);
      const float correction = exponential(part.row_max - part.base);
      UNROLL for (int i = 0; i < kPack; ++i) part.acc[i] *= correction;
      part.row_sum *= correction;
    });
    const auto add_up = [&](auto value) {
      warp.template reduce_columns<kPacks>(value, [](float a, float c) { return a + c; });
    };
    UNROLL for (int i = 0; i < kPack; ++i) add_up([&](int lane) -> float& { return parts[lane].acc[i]; });
    add_up([&](int lane) -> float& { return parts[lane].row_sum; });
    warp.lanes([&](int lane) {
      const int pack = first + lane;
      if (lane >= kPacks || pack >= end) return;
      const Part& part = parts[lane];
      const int row = pack / kInRow, column = pack % kInRow * kPack;
      if (column >= group.value_size) return;
      const float factor = normalised(1, part.row_sum + exponential(part.sink - part.base));
      T* const y = group.source.y_rows.at(tile.batch, head_of(tile, row), 0) + column;
      Pack<T, kPack> out;
      UNROLL for (int i = 0; i < kPack; ++i) out.at[i] = T(part.acc[i] * factor);
      device::store_pack(y, out, y_in_packs);
    });
  }
  DEVICE_FN static Words& in_q(Shared& s, int row, int column) {
    return s.q[0][column / 32][row * 4 + column % 32 / 8];
  }
  // What of queries, and of the new key and its values, there is not.
  DEVICE_FN void clear(Shared& s, const Tile& tile, int t) const {
    constexpr int kThreads = 32 * kNewWarps, kFresh = kWidth / 8;
    static_assert(kChunks % kNewWarps == 0 && kFresh <= kThreads);
    UNROLL for (int n = 0; n < kChunks / kNewWarps; ++n) {
      const int i = t + n * kThreads, row = i % 32 / 4, column = i / 32 * 32 + i % 4 * 8;
      if (row >= tile.rows || column >= group.head_size) in_q(s, row, column) = Words{};
    }
    if (t < kFresh && 8 * t >= group.head_size) s.fresh[0][t] = s.fresh[1][t] = Words{};
  }
  // Queries go where tiles want them, the new key and its values into the cache, too.
  DEVICE_FN void take_new(Shared& s, const Tile& tile, bool keeps, int64_t likely, int t) const {
    const int heads = tile.rows + (keeps ? 2 : 0);
    for (int i = t; i < heads << add.lanes_log2; i += 32 * kNewWarps) {
      const int row = i >> add.lanes_log2, pack = i - (row << add.lanes_log2), which = row - tile.rows;
      if (pack >= add.packs) continue;
      const int number =
          which < 0 ? tile.kv_head * tile.rows + row : add.add.q_heads + which * add.add.kv_heads + tile.kv_head;
      const auto rotated = add.rotated(tile.batch, tile.batch, 0, number, pack, likely);
      const auto put = [&](int column, const auto& packed) {
        (which < 0 ? in_q(s, row, column) : s.fresh[which][column / 8]) = device::words_of(packed);
      };
      put(rotated.first, rotated.packs.real);
      if (rotated.rotates) put(rotated.first + add.add.layout.half, rotated.packs.imaginary);
      if (which >= 0 && add.add.has_room(rotated.begin))
        add.store(rotated, add.in_cache(tile.batch, number, rotated.begin));
    }
  }
  // As if a tile began with the new key.
  DEVICE_FN static void take_fresh(const Shared& s, typename Group::Keys& keys, typename Group::Values& values,
                                   int lane) {
    UNROLL for (int i = 0; i < 2; ++i) {
      UNROLL for (int c = 0; c < kChunks; ++c) keys.at[i][c] =
          i == 0 && lane / 4 == 0 ? s.fresh[0][4 * c + lane % 4] : Words{};
    }
    UNROLL for (int i = 0; i < 4; ++i) {
      UNROLL for (int n = 0; n < Group::kSpans; ++n) values.at[i][n] =
          i == 0 && lane % 4 == 0 ? s.fresh[1][8 * n + lane / 4] : Words{};
    }
  }
};

// How many blocks look at a head's keys: as many as can all be there at once, if each has keys enough; none where they
// would look for long, for the ways of many blocks ask for more keys at once.
template <class Kernel>
int blocks_for(Context& context, const Attend& p) {
  constexpr int64_t kFewestKeys = 2 * Kernel::kKeys, kMostKeys = 2048;
  const int device = context.stream().device();
  const int64_t room = device::multiprocessors(device) / (p.head_size <= 64 ? 1 : 2), heads = p.batch * p.kv_heads;
  const int most = device::most_in_cluster<typename Kernel::Shared, Kernel>(device);
  int blocks = 1;
  while (blocks < most && 2 * blocks * heads <= room && p.keys >= 2 * blocks * kFewestKeys) blocks *= 2;
  return most > 0 && heads <= room && p.keys <= blocks * kMostKeys ? blocks : 0;
}

template <class T, int kChunks>
bool launch(Context& context, const CacheExtension& e, const Attend& p) {
  using Kernel = DecodeStep<T, kChunks>;
  const int blocks = blocks_for<Kernel>(context, p);
  if (blocks == 0) return false;
  CacheExtension all = e;
  all.rotated_q = all.keys;  // queries are rotated, wherever they go
  const auto add = rows_to_add<T, false>(context, all, new_rows(e), e.keys, e.values);
  if (!add.are_packs()) return false;
  copy_past(context, e);
  const DenseRows<T, 8> rows{{},
                             VisibleKeysView<T>(p, context.fault()),
                             FoldedRows(p),
                             p.q,
                             p.k,
                             p.v,
                             p.y,
                             int(p.heads),
                             device::SmallDivider(1),
                             device::SmallDivider(int(p.kv_heads))};
  device::cluster_kernel<typename Kernel::Shared>(
      context.stream(), {checked_product(p.batch, p.kv_heads), blocks, Kernel::kThreads},
      Kernel{{rows, SinkView<T>(p), int(p.head_size), int(p.value_size), float(p.scale), float(p.softcap), {}, {}},
             AddPacks<T>(add),
             std::countr_zero(unsigned(blocks)),
             packs_fit<Kernel::kPack, T>(p.y, p.value_size)});
  return true;
}

}  // namespace

bool decode_step(Context& context, const CacheExtension& e, const Attend& p) {
  if (e.rows != 1 || e.from_start || e.filled || e.staged || e.residents.capacity > 0 || e.codes[0] || e.q_weights)
    return false;
  if (p.scores.data || p.heads / p.kv_heads > 8 || p.head_size > 128 || !fits_grouped_decode(p)) return false;
  bool done = false;
  dispatch(TypeList<Half, BFloat16>{}, p.type,
           [&]<class T> { done = p.head_size <= 64 ? launch<T, 2>(context, e, p) : launch<T, 4>(context, e, p); });
  return done;
}

}  // namespace encore::ops
