#include "ops/attention/dense/decode_step.h"

#include "device/cluster.h"
#include "device/device.h"
#include "device/divide_small.h"
#include "ops/attention/dense/decode_share.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Cluster;
using device::Pack;
using device::PerThread;
using device::Warp;

// A cluster has the heads that share one of keys, and each of its blocks a part of these. kNormed: queries and keys are
// normalised.
template <class T, int kChunks, bool kNormed>
struct DecodeStep {
  using Part = DecodeShare<T, kChunks, 10>;
  using Tile = typename Part::Tile;
  static constexpr int kRows = Part::kRows, kWidth = Part::kWidth, kMany = Part::kMany;
  static constexpr int kThreads = Part::kOldThreads + Part::kNewThreads, kMaxThreads = kThreads;
  static constexpr int kPack = 4, kPacks = 4;  // of values of a row as they are finished
  static constexpr bool kBeginsEarly = true;
  static constexpr int64_t kDynamicBytes = Part::kAccBytes;
  struct Shared : Part::Shared {
    alignas(16) float combined[kRows][kWidth];  // of the block
    float combined_max[kRows], combined_sum[kRows];
    int length;
  };

  Part part;
  bool y_in_packs;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& shared) const {
    const auto& source = part.group.source;
    const int rank = rank_of(b);
    Tile tile = tile_of(b);
    PerThread<typename Part::Keys, kThreads> keys;
    PerThread<typename Part::Values, kThreads> values;
    const auto take_old = [&](int t, Shared& s) {
      Tile known = tile;
      known.length = source.visible.likely_length(tile.batch);
      part.prefetch_keys(known, rank, t);
      // Asked for where they are likely to be, before that is known.
      NO_UNROLL for (bool sure = false; !sure;) {
        const auto places = part.places_of(known, rank, t);
        b.wait();
        part.load(keys[t], values[t], places, t % 32);
        const int length = source.visible.length(tile.batch);
        sure = length == known.length;
        known.length = length;
      }
      if (t == 0) s.length = known.length;
      part.find_ranges(s, known, t);
    };
    const auto expect_new = [&](int t, Shared& s) {
      const int own = t - Part::kOldThreads;
      const int64_t likely = part.add.likely_position(tile.batch, tile.batch, 0);
      part.add.prefetch_angles(likely, own);
      part.clear(s, tile, own);
      b.wait();
      return likely;
    };
    if constexpr (kNormed)
      device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
        const int first = 32 * warp.index();
        if (first < Part::kOldThreads) return warp.lanes([&](int lane) { take_old(first + lane, s); });
        int64_t likely;
        warp.lanes([&](int lane) { likely = expect_new(first + lane, s); });
        part.take_normed(warp, s, tile, rank == 0, likely);
      });
    else
      b.threads([&](int t, Shared& s) {
        if (t < Part::kOldThreads) return take_old(t, s);
        const int64_t likely = expect_new(t, s);
        part.take_new(s, tile, rank == 0, likely, t - Part::kOldThreads);
      });
    tile.length = shared.length;
    device::for_each_warp(
        b, [&](const Warp& warp, Shared& s) { part.attend(warp, b, s, acc_in(b, s), keys, values, tile, rank); });
    b.threads([&](int t, Shared& s) {
      for (int i = t; i < tile.rows * (kWidth / kMany); i += kThreads) {
        const int row = i / (kWidth / kMany), column = i % (kWidth / kMany) * kMany;
        const auto combined = part.combined(s, acc_in(b, s), row, column);
        *reinterpret_cast<Pack<float, kMany>*>(&s.combined[row][column]) = combined.acc;
        if (column == 0) s.combined_max[row] = combined.row_max, s.combined_sum[row] = combined.row_sum;
      }
    });
  }

  // Each block finishes its part of the values of all rows, in packs. Lanes that are the same modulo kPacks have one,
  // each of another block.
  DEVICE_FN void join(Block<Shared>& b, const Shared&, const Cluster<Shared>& cluster) const {
    const Tile tile = tile_of(b);
    const int in_cluster = 1 << part.parts_log2, all = tile.rows * (kWidth / kPack);
    const int own = (all + in_cluster - 1) >> part.parts_log2, from = rank_of(b) * own;
    const int end = from + own < all ? from + own : all;
    device::for_each_warp(b, [&](const Warp& warp, Shared&) {
      for (int first = from + warp.index() * kPacks; first < end; first += kThreads / 32 * kPacks)
        finish(warp, cluster, tile, first, end);
    });
  }

 private:
  static_assert(32 / kPacks == device::kMostInCluster);
  DEVICE_FN int rank_of(const Block<Shared>& b) const { return int(b.index()) & ((1 << part.parts_log2) - 1); }
  // Without its length.
  DEVICE_FN Tile tile_of(const Block<Shared>& b) const {
    int kv_head;
    const int batch = part.group.source.by_kv_heads(int(b.index()) >> part.parts_log2, kv_head);
    return {batch, kv_head, 0, part.group.source.fold.rows, 0};
  }
  // All rows are of one query.
  DEVICE_FN static int head_of(const Tile& tile, int row) { return tile.kv_head * tile.rows + row; }
  // Of all warps.
  DEVICE_FN static float* acc_in(const Block<Shared>& b, Shared& s) { return b.template dynamic<float>(s); }

  DEVICE_FN void finish(const Warp& warp, const Cluster<Shared>& cluster, const Tile& tile, int first, int end) const {
    constexpr int kInRow = kWidth / kPack;
    using OfRow = PartOfRow<kPack>;
    PerThread<OfRow, 32> parts;
    warp.lanes([&](int lane) {
      const int pack = first + lane % kPacks, row = pack / kInRow, rank = lane / kPacks;
      OfRow& own = parts[lane];
      own = {};
      if (pack >= end || rank >> part.parts_log2 != 0) return;
      const Shared& of = cluster.shared(rank);
      const auto acc = *reinterpret_cast<const Pack<float, kPack>*>(&of.combined[row][pack % kInRow * kPack]);
      UNROLL for (int i = 0; i < kPack; ++i) own.acc[i] = acc.at[i];
      own.row_max = of.combined_max[row], own.row_sum = of.combined_sum[row];
      own.sink = part.group.sinks.at(head_of(tile, row));
    });
    OfRow::template join<kPacks>(warp, parts);
    warp.lanes([&](int lane) {
      const int pack = first + lane;
      if (lane >= kPacks || pack >= end) return;
      const int row = pack / kInRow, column = pack % kInRow * kPack;
      if (column >= part.group.value_size) return;
      T* const y = part.group.source.y_rows.at(tile.batch, head_of(tile, row), 0) + column;
      Pack<T, kPack> out;
      UNROLL for (int i = 0; i < kPack; ++i) out.at[i] = T(parts[lane].acc[i]);
      device::store_pack(y, out, y_in_packs);
    });
  }
};

// How many blocks look at a head's keys: as many as can all be there at once, if each has keys enough; none where they
// would look for long, for the ways of many blocks ask for more keys at once.
template <class Kernel>
int blocks_for(int device, const Attend& p) {
  constexpr int64_t kFewestKeys = 2 * Kernel::Part::Group::kKeys, kMostKeys = 2048;
  const int64_t room = device::multiprocessors(device) / (p.head_size <= 64 ? 1 : 2), heads = p.batch * p.kv_heads;
  const int most = device::most_in_cluster<typename Kernel::Shared, Kernel>(device);
  int blocks = 1;
  while (blocks < most && 2 * blocks * heads <= room && p.keys >= 2 * blocks * kFewestKeys) blocks *= 2;
  return most > 0 && heads <= room && p.keys <= blocks * kMostKeys ? blocks : 0;
}

template <class T, int kChunks, bool kNormed>
bool launch(Context& context, const CacheExtension& e, const Attend& p) {
  using Kernel = DecodeStep<T, kChunks, kNormed>;
  const int blocks = blocks_for<Kernel>(context.stream().device(), p);
  if (blocks == 0) return false;
  const auto part = share_decode_step<typename Kernel::Part>(context.fault(), e, p, blocks);
  if (!part) return false;
  const Kernel kernel{*part, packs_fit<Kernel::kPack, T>(p.y, p.value_size)};
  copy_past(context, e);
  device::cluster_kernel<typename Kernel::Shared>(
      context.stream(), {checked_product(p.batch, p.kv_heads), blocks, Kernel::kThreads}, kernel);
  return true;
}

}  // namespace

bool decode_step(Context& context, const CacheExtension& e, const Attend& p) {
  if (e.rows != 1 || e.from_start || e.filled || e.staged || e.residents.capacity > 0 || e.codes[0]) return false;
  if (p.scores.data || p.heads / p.kv_heads > 8 || p.head_size > 128 || !fits_grouped_decode(p)) return false;
  bool done = false;
  dispatch(TypeList<Half, BFloat16>{}, p.type, [&]<class T> {
    const auto with = [&]<int kChunks> {
      done = e.q_weights ? launch<T, kChunks, true>(context, e, p) : launch<T, kChunks, false>(context, e, p);
    };
    p.head_size <= 64 ? with.template operator()<2>() : with.template operator()<4>();
  });
  return done;
}

}  // namespace encore::ops
