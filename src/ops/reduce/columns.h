// Reductions whose innermost run is kept: neighbouring threads take neighbouring packs of it, `rows` threads of a block
// share each column, and the blocks of a cluster share out the rows.
#pragma once
#include <algorithm>
#include <bit>
#include <numeric>

#include "device/cluster.h"
#include "device/divide_small.h"
#include "device/unaligned_pack.h"
#include "ops/reduce/column_spread.h"
#include "ops/reduce/results.h"

namespace encore::ops {

using device::SmallDivider;

// Columns go in groups of `width`, a multiple of packs, and a group has a thread for each of its packs. Where runs do
// not begin at aligned addresses it has one more, and all packs lie where addresses are aligned: in each row at columns
// of its own, but the rows that one thread takes are so far apart that they are alike.
template <class F>
struct ReduceColumns {
  using In = typename F::In;
  using Acc = typename F::Acc;
  // An accumulator for each column of a pack; not too many, for they are in registers and in shared memory.
  static constexpr int kPack = std::min(device::pack_size<In>(), 8), kBatch = F::kBatch;
  static constexpr int kThreads = sizeof(Acc) * kPack <= 32 ? 512 : 256;  // the most of a block
  static constexpr int kMaxThreads = 1024;  // what registers are to leave room for: several blocks
  static constexpr int kAtOnce = 8;         // accumulators that are merged
  static_assert(device::kMostInCluster <= kAtOnce);
  static constexpr bool kBeginsEarly = true;  // it has to find out first where its rows are
  // Packs lie an accumulator apart from one another, for neighbouring threads to write to banks of their own.
  static constexpr int kApart = kPack > 1;
  struct Shared {
    Acc acc[kThreads * (kPack + kApart)];
  };

  const In* x;
  Results<F> results;
  int64_t elements, outer, run, axis;   // of x; kept; reduced into one
  int64_t outer_stride, stride;         // from one outer index to the next, and from one reduced element to the next
  int64_t step;                         // from one of those that a thread takes to its next
  int chunk, rows, groups_here, width;  // of a block
  int cluster_log2;                     // of its blocks
  bool shifted, affine;                 // affine: the strides are all that there is to know
  SmallDivider by_lanes, by_lanes_of_group, by_width, by_tiles, by_groups_in_run;
  F f;
  Dims kept, reduced;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const Tile tile = tile_of(b);
    const int slots = groups_here * width;
    b.threads([&](int t, Shared& s) {
      int lane, in_group;
      const int row = by_lanes(t, lane), here = by_lanes_of_group(lane, in_group);
      const int64_t begin = int64_t(tile.part) * chunk, outer_here = tile.outer + here;
      const int64_t column = int64_t(tile.group) * width + in_group * kPack;
      const In* const from = x + (outer_here * outer_stride + (begin + row) * stride + column);
      const int shift = shifted ? int(reinterpret_cast<uintptr_t>(from) / sizeof(In) % kPack) : 0;
      const bool takes = row < rows && outer_here < outer && column - shift < run;
      const int count = takes ? int(axis - begin < chunk ? axis - begin : chunk) : 0;
      b.wait();
      if (row >= rows) return;
      Acc acc[kPack];
      UNROLL for (int j = 0; j < kPack; ++j) acc[j] = f.zero();
      if (affine)
        collect(acc, from - shift, begin, row, count);
      else
        NO_UNROLL for (int r = row; r < count; r += rows) {
          take_careful(acc, x + (kept.offset(outer_here) + reduced.offset(begin + r)), column, begin + r);
        }
      const int first = in_group * kPack - shift;  // in the group
      const int to = row * slots + here * width + first;
      if (shifted) {
        UNROLL for (int j = 0; j < kPack; ++j) {
          if (unsigned(first + j) < unsigned(width)) s.acc[place(to + j)] = acc[j];
        }
      } else {
        UNROLL for (int j = 0; j < kPack; ++j) s.acc[place(to) + j] = acc[j];
      }
    });
    // Down to as many as join() takes.
    for (int left = rows, next; left > (cluster_log2 > 0 ? 1 : kAtOnce); left = next) {
      next = (left + kAtOnce - 1) / kAtOnce;
      b.threads([&](int t, Shared& s) {
        const int apart = next * slots;
        for (int i = t; i < apart; i += b.size()) {
          Acc* const to = s.acc + place(i);
          *to = merged([&](int k) { return i + k * apart < left * slots; },
                       [&](int k) -> const Acc& { return to[k * place(apart)]; });
        }
      });
    }
  }

  // What is left of a block's rows, or what each block of the cluster has of them.
  DEVICE_FN void join(Block<Shared>& b, const Shared& own, const device::Cluster<Shared>& cluster) const {
    const Tile tile = tile_of(b);
    const int slots = groups_here * width, in_cluster = 1 << cluster_log2, rank = tile.part & (in_cluster - 1);
    int left = rows;
    while (left > kAtOnce) left = (left + kAtOnce - 1) / kAtOnce;
    const int own_slots = (slots + in_cluster - 1) >> cluster_log2, first = rank * own_slots;
    const int end = first + own_slots < slots ? first + own_slots : slots;
    b.threads([&](int t, Shared&) {
      for (int i = first + t; i < end; i += b.size()) {
        int in_group;
        const int64_t outer_here = tile.outer + by_width(i, in_group);
        const int64_t column = int64_t(tile.group) * width + in_group;
        if (outer_here >= outer || column >= run) continue;
        const Acc* const rows_left = own.acc + place(i);
        const Acc all = in_cluster > 1 ? merged([&](int k) { return k < in_cluster; },
                                                [&](int k) -> const Acc& { return cluster.shared(k).acc[place(i)]; })
                                       : merged([&](int k) { return k < left; },
                                                [&](int k) -> const Acc& { return rows_left[k * place(slots)]; });
        results.put(f, outer_here * run + column, tile.part >> cluster_log2, all);
      }
    });
  }

 private:
  struct Tile {
    int64_t outer;    // the first of a block
    int group, part;  // of the run; of the rows
  };
  DEVICE_FN Tile tile_of(const Block<Shared>& b) const {
    int tile, group;
    const int block = int(b.index()), split = by_tiles(block >> cluster_log2, tile);
    const int64_t outer_here = int64_t(by_groups_in_run(tile, group)) * groups_here;
    return {outer_here, group, (split << cluster_log2) + (block & ((1 << cluster_log2) - 1))};
  }
  DEVICE_FN static int place(int slot) { return slot + int(unsigned(slot) / kPack) * kApart; }
  // Those of kAtOnce that are there, of which the first is.
  template <class IsThere, class At>
  DEVICE_FN Acc merged(IsThere is_there, At at) const {
    Acc all = at(0);
    if constexpr (kBatch > 2) {
      Acc others[kAtOnce - 1];
      UNROLL for (int k = 1; k < kAtOnce; ++k) {
        if (is_there(k)) others[k - 1] = at(k);
      }
      UNROLL for (int k = 1; k < kAtOnce; ++k) {
        if (is_there(k)) all = f.merge(all, others[k - 1]);
      }
    } else {
      NO_UNROLL for (int k = 1; k < kAtOnce && is_there(k); ++k) all = f.merge(all, at(k));
    }
    return all;
  }
  // Takes a pack of each row that is this thread's, the first of them at `from`. One that is not in its row as a whole
  // has values of other columns, which are left out in the end. They are asked for with guards, as the compiler keeps
  // loads without them waiting for one another.
  DEVICE_FN void collect(Acc (&acc)[kPack], const In* from, int64_t begin, int row, int count) const {
    NO_UNROLL for (int r = row; r < count; r += kBatch * rows) {
      Pack<In, kPack> batch[kBatch];
      UNROLL for (int u = 0; u < kBatch; ++u) {
        if (r + u * rows < count) batch[u] = device::load_pack_within<kPack>(from, x, x + elements);
        from += step;
      }
      UNROLL for (int u = 0; u < kBatch; ++u) {
        if (r + u * rows >= count) break;
        UNROLL for (int j = 0; j < kPack; ++j) f.take(acc[j], batch[u].at[j], begin + r + u * rows);
      }
    }
  }
  // A pack of a row which begins at `start`, of which some columns may not be there.
  DEVICE_FN void take_careful(Acc (&acc)[kPack], const In* start, int64_t column, int64_t index) const {
    if (column >= 0 && column + kPack <= run && device::is_pack_aligned<kPack>(start + column)) {
      const Pack<In, kPack> pack = device::load_pack<kPack>(start + column, true);
      UNROLL for (int j = 0; j < kPack; ++j) f.take(acc[j], pack.at[j], index);
    } else {
      start += column;
      UNROLL for (int j = 0; j < kPack; ++j) {
        if (has(column + j)) f.take(acc[j], start[j], index);
      }
    }
  }
  DEVICE_FN bool has(int64_t column) const { return uint64_t(column) < uint64_t(run); }
};

// Launches it; with `splits` outputs may be split.
template <class F>
Results<F> reduce_columns(Context& context, const ReducePlan& plan, const typename F::In* x, Results<F> results,
                          const F& f, bool splits) {
  using Kernel = ReduceColumns<F>;
  using Shared = typename Kernel::Shared;
  constexpr int kPack = Kernel::kPack;
  const int device = context.stream().device();
  const int64_t run = plan.run, axis = plan.reduced.count;
  const bool affine = plan.kept.rank <= 1 && plan.reduced.rank <= 1;
  const bool shifted = affine && !(run % kPack == 0 && device::is_pack_aligned<kPack>(x));
  const ColumnSpread spread = spread_columns(
      {plan.kept.count, (run + kPack - 1) / kPack, axis,
       shifted ? int(std::min<int64_t>(kPack / std::gcd<int64_t>(run, kPack), axis)) : 1, shifted,
       device::multiprocessors(device), Kernel::kThreads, device::most_in_cluster<Shared, Kernel>(device), splits});
  const int in_cluster = spread.in_cluster, width = (spread.of_group - shifted) * kPack;
  // Parts are whole clusters'.
  const int64_t part = results.cut(context, 1, spread.splits, axis, 1, in_cluster);
  const int64_t clusters = checked_product(spread.tiles, results.splits);
  const auto stride_of = [](const Dims& dims) { return dims.rank ? dims.strides[0] : 0; };
  const Kernel kernel{x,
                      results,
                      checked_product(plan.outputs(), axis),
                      plan.kept.count,
                      run,
                      axis,
                      stride_of(plan.kept),
                      stride_of(plan.reduced),
                      stride_of(plan.reduced) * spread.rows,
                      int((part + in_cluster - 1) / in_cluster),
                      spread.rows,
                      spread.groups_here,
                      width,
                      std::countr_zero(unsigned(in_cluster)),
                      shifted,
                      affine,
                      SmallDivider(spread.lanes),
                      SmallDivider(spread.of_group),
                      SmallDivider(width),
                      SmallDivider(int(spread.tiles)),
                      SmallDivider(int(spread.groups_in_run)),
                      f,
                      plan.kept,
                      plan.reduced};
  device::cluster_kernel<Shared>(context.stream(), {clusters, in_cluster, spread.threads}, kernel);
  return results;
}

}  // namespace encore::ops
