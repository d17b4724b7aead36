// Reductions whose innermost run is kept: neighbouring threads take neighbouring packs of it, and `rows` threads of a
// block share each column.
#pragma once
#include <algorithm>
#include <numeric>

#include "device/divide_small.h"
#include "device/neighbours.h"
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
  static constexpr int kPack = std::min(device::pack_size<In>(), 8), kBatch = F::kBatch, kThreads = 256;
  static constexpr int kMaxThreads = 1024;  // what registers are to leave room for: several blocks
  struct Shared {
    Acc acc[kThreads * kPack];
  };

  const In* x;
  Results<F> results;
  int64_t elements, run, axis, chunk;  // of x; kept; reduced into one, and of a split
  int64_t outer_stride, stride;        // from one outer index to the next, and from one reduced element to the next
  int64_t step;                        // from one of those that a thread takes to its next
  int64_t groups;
  int rows, lanes, groups_here, width;  // of a block
  bool shifted, affine;                 // affine: the strides are all that there is to know
  SmallDivider by_lanes, by_lanes_of_group, by_width;
  device::Divider by_tiles, by_groups_in_run;
  Dims kept, reduced;
  F f;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    int64_t tile;
    const int64_t split = by_tiles(b.index(), tile);
    const int slots = groups_here * width;
    b.threads([&](int t, Shared& s) {
      int lane, in_group;
      const int row = by_lanes(t, lane);
      if (row >= rows) return;
      const int here = by_lanes_of_group(lane, in_group);
      Acc acc[kPack];
      UNROLL for (int j = 0; j < kPack; ++j) acc[j] = f.zero();
      int shift = 0;
      if (const int64_t group = tile * groups_here + here; group < groups) {
        int64_t group_in_run;
        const int64_t outer = by_groups_in_run(group, group_in_run);
        shift = collect(acc, outer, group_in_run * width + in_group * kPack, split * chunk, row);
      }
      const int first = in_group * kPack - shift;  // in the group
      Acc* to = s.acc + row * slots + here * width + first;
      UNROLL for (int j = 0; j < kPack; ++j) {
        if (!shifted || unsigned(first + j) < unsigned(width)) to[j] = acc[j];
      }
    });
    for (int left = rows, next; left > 0; left = next > 1 ? next : 0) {
      next = (left + 7) / 8;
      b.threads([&](int t, Shared& s) {
        for (int i = t; i < next * slots; i += b.size()) {
          Acc all = s.acc[i];
          for (int at = i + next * slots; at < left * slots; at += next * slots) all = f.merge(all, s.acc[at]);
          if (next > 1)
            s.acc[i] = all;
          else
            put(tile, i, split, all);
        }
      });
    }
  }

 private:
  DEVICE_FN void put(int64_t tile, int slot, int64_t split, const Acc& all) const {
    int in_group;
    const int64_t group = tile * groups_here + by_width(slot, in_group);
    if (group >= groups) return;
    int64_t group_in_run;
    const int64_t outer = by_groups_in_run(group, group_in_run), column = group_in_run * width + in_group;
    if (column < run) results.put(f, outer * run + column, split, all);
  }
  // Takes a pack of each row that is this thread's, from `column` on or, where that is not aligned, a little before: by
  // how much is the result.
  DEVICE_FN int collect(Acc (&acc)[kPack], int64_t outer, int64_t column, int64_t begin, int row) const {
    const int count = int(axis - begin < chunk ? axis - begin : chunk);
    if (!affine) {
      const In* from = x + kept.offset(outer);
      if (column >= run) return 0;
      NO_UNROLL for (int r = row; r < count; r += rows) {
        take_careful(acc, from + reduced.offset(begin + r), column, begin + r);
      }
      return 0;
    }
    const In* const start = x + (outer * outer_stride + begin * stride);
    const In* from = start + (row * stride + column);
    const int shift = shifted ? int(reinterpret_cast<uintptr_t>(from) / sizeof(In) % kPack) : 0;
    column -= shift;
    from -= shift;
    if (column >= run) return shift;
    // A pack that is not in its row as a whole has values of other columns, which are left out in the end.
    const auto take = [&]<int kCount>(int r, auto is_there) {
      Pack<In, kPack> batch[kCount];
      UNROLL for (int u = 0; u < kCount; ++u) {
        if (is_there(u)) batch[u] = device::load_pack_within<kPack>(from + u * step, x, x + elements);
      }
      UNROLL for (int u = 0; u < kCount; ++u) {
        if (!is_there(u)) continue;
        UNROLL for (int j = 0; j < kPack; ++j) f.take(acc[j], batch[u].at[j], begin + r + u * rows);
      }
      from += kCount * step;
    };
    int r = row;
    NO_UNROLL for (; r + (kBatch - 1) * rows < count; r += kBatch * rows) {
      take.template operator()<kBatch>(r, [](int) { return true; });
    }
    if constexpr (constexpr int kRest = kBatch / 2; kRest > 0) {
      NO_UNROLL for (; r < count; r += kRest * rows) {
        take.template operator()<kRest>(r, [&](int u) { return r + u * rows < count; });
      }
    }
    return shift;
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

// Whether `take` looks something up by a value, which then has to be one of x's.
template <class F>
constexpr bool looks_up() {
  if constexpr (requires { F::kLooksUp; })
    return F::kLooksUp;
  else
    return false;
}

// Launches it; with `splits` outputs may be split.
template <class F>
Results<F> reduce_columns(Context& context, const ReducePlan& plan, const typename F::In* x, Results<F> results,
                          const F& f, bool splits) {
  using Kernel = ReduceColumns<F>;
  constexpr int kPack = Kernel::kPack;
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t multiprocessors = device::multiprocessors(context.stream().device());
  const int64_t run = plan.run, outer = plan.kept.count, axis = plan.reduced.count, in_run = ceil(run, kPack);
  const int64_t packs = checked_product(outer, in_run);
  const bool affine = plan.kept.rank <= 1 && plan.reduced.rank <= 1 && !looks_up<F>();
  const bool shifted = affine && !(run % kPack == 0 && device::is_pack_aligned<kPack>(x));
  const int alike = shifted ? kPack / int(std::gcd<int64_t>(run, kPack)) : 1;  // rows from one to the next like it

  // Wide loads first, then threads that share a column, then more of them.
  const int64_t plenty = multiprocessors * 4096;  // threads that fill the GPU several times
  int rows = 8;
  while (rows > alike && (packs * rows > plenty || rows > axis)) rows /= 2;
  int side = Kernel::kThreads / rows;
  while (side > 32 && side / 2 >= packs && rows * 2 <= axis) side /= 2, rows *= 2;
  // Rather narrow blocks than a second launch.
  const int64_t enough = multiprocessors * 4;
  if (packs >= enough * 8)
    while (side > 8 && packs < enough * side && rows * 2 <= axis) side /= 2, rows *= 2;
  // What lies in the cache waits for its loads rather than for memory: more blocks of fewer columns, down to 32 bytes
  // side by side.
  const bool small = axis * packs <= int64_t(1) << 18;
  while (side > 2 && rows < axis && (side / 2 >= packs || (small && packs < multiprocessors * side)))
    side /= 2, rows *= 2;

  // Groups of equal width that each have at most `side` threads, then as many groups as there is room for.
  const int64_t most = shifted ? std::max(side - 1, 1) : 1;
  const int64_t groups_in_run = ceil(in_run, most), of_group = ceil(in_run, groups_in_run) + shifted;
  const int64_t groups = checked_product(outer, groups_in_run);
  const int here = int(std::min(std::max<int64_t>(side / of_group, 1), groups)), lanes = int(of_group) * here;
  rows = std::max(std::min(rows, Kernel::kThreads / lanes) / alike * alike, alike);
  const int threads = (rows * lanes + 31) / 32 * 32;
  const int width = int(of_group - shifted) * kPack;
  const int64_t tiles = ceil(groups, here);
  const int64_t chunk =
      results.cut(context, tiles, splits ? enough : 0, axis, int64_t(rows) * 8, int64_t(rows) * Kernel::kBatch);
  const int64_t blocks = checked_product(tiles, results.splits);
  const auto stride_of = [](const Dims& dims) { return dims.rank ? dims.strides[0] : 0; };
  const Kernel kernel{x,
                      results,
                      checked_product(plan.outputs(), axis),
                      run,
                      axis,
                      chunk,
                      stride_of(plan.kept),
                      stride_of(plan.reduced),
                      stride_of(plan.reduced) * rows,
                      groups,
                      rows,
                      lanes,
                      here,
                      width,
                      shifted,
                      affine,
                      SmallDivider(lanes),
                      SmallDivider(int(of_group)),
                      SmallDivider(width),
                      device::Divider(tiles, blocks),
                      device::Divider(groups_in_run, groups),
                      plan.kept,
                      plan.reduced,
                      f};
  device::block_kernel<typename Kernel::Shared>(context.stream(), {blocks, threads}, kernel);
  return results;
}

}  // namespace encore::ops
