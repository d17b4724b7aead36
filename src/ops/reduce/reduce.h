// The kernels of reductions. A reduction is a functor F with
//   In, Out, Acc                        types; an Acc takes at most 16 bytes
//   Acc zero()                          of no values
//   void take(Acc&, In, int64_t index)  one more value; `index` counts along the innermost reduced dimension
//   Acc merge(Acc, Acc)                 associative
//   Out finish(Acc)
//   kBatch                              packs a thread asks for before it waits for the first; 1 where `take` is long
// Every value is read once. Results do not depend on the order in which blocks run: where outputs are too few to fill
// the GPU, a first launch leaves parts of each in scratch and a second merges them.
#pragma once
#include <algorithm>

#include "device/device.h"
#include "device/transform.h"
#include "ops/reduce/plan.h"
#include "ops/reduce/team.h"
#include "ops/registry.h"

namespace encore::ops {

using device::Block;
using device::NoShared;
using device::Pack;
using device::PerThread;

// Where results go: finished to `y`, or, of output i, into parts[i * splits + split].
template <class F>
struct Results {
  typename F::Out* y;
  typename F::Acc* parts;  // null if there is one split
  int64_t splits;

  DEVICE_FN void put(const F& f, int64_t output, int64_t split, const typename F::Acc& acc) const {
    if (parts)
      parts[output * splits + split] = acc;
    else
      y[output] = f.finish(acc);
  }
};

// The innermost run is reduced: a team for each output and split. A run that is not made of whole packs begins and ends
// with parts of some.
template <class F, int kLanes>
struct ReduceRuns {
  using In = typename F::In;
  using Acc = typename F::Acc;
  using Together = Team<kLanes>;
  static constexpr int kPack = device::pack_size<In>(), kBatch = F::kBatch, kMaxThreads = kLanes ? 256 : 512;

  const In* x;
  Results<F> results;
  Dims kept, reduced;
  int64_t outputs, run, packs, chunk;  // packs of an output, and of a split
  device::Divider packs_in_run;
  bool aligned;
  F f;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    auto acc = Together::reduce(
        b, f.zero(), [&](int t) { return collect(b, t); }, [&](const Acc& a, const Acc& c) { return f.merge(a, c); });
    b.threads([&](int t, NoShared&) {
      int64_t output, split;
      if (Together::lane(t) == 0 && locate(b, t, output, split)) results.put(f, output, split, acc[t]);
    });
  }

 private:
  DEVICE_FN bool locate(const Block<NoShared>& b, int t, int64_t& output, int64_t& split) const {
    const int64_t i = Together::index(b, t);
    output = results.splits == 1 ? i : i / results.splits;
    split = i - output * results.splits;
    return output < outputs;
  }
  DEVICE_FN Acc collect(const Block<NoShared>& b, int t) const {
    Acc acc = f.zero();
    int64_t output, split;
    if (!locate(b, t, output, split)) return acc;
    const In* from = x + kept.offset(output);
    const int64_t end = (split + 1) * chunk < packs ? (split + 1) * chunk : packs;
    const int lanes = Together::size(b);
    int64_t p = split * chunk + Together::lane(t);
    if (kBatch > 1 && reduced.rank == 0) {  // all packs are neighbours
      const int before = before_run(from);
      if (p == 0 && before != 0 && end > 0) {
        take_pack(acc, from, 0);
        p = lanes;
      }
      const int64_t whole = (run + before) / kPack, full = end < whole ? end : whole;
      for (; p + (kBatch - 1) * lanes < full; p += kBatch * lanes) {
        Pack<In, kPack> batch[kBatch];
        UNROLL for (int u = 0; u < kBatch; ++u) batch[u] =
            device::load_pack<kPack>(from + ((p + u * lanes) * kPack - before), true);
        UNROLL for (int u = 0; u < kBatch; ++u) {
          UNROLL for (int j = 0; j < kPack; ++j) f.take(acc, batch[u].at[j], (p + u * lanes) * kPack - before + j);
        }
      }
    }
    NO_UNROLL for (; p < end; p += lanes) {
      int64_t in_run = p;
      const In* start = reduced.rank ? from + reduced.offset(packs_in_run(p, in_run)) : from;
      take_pack(acc, start, in_run);
    }
    return acc;
  }
  // How far a run begins behind an aligned address. Packs lie at these.
  DEVICE_FN int before_run(const In* start) const {
    return aligned ? 0 : int(reinterpret_cast<uintptr_t>(start) / sizeof(In) % kPack);
  }
  DEVICE_FN void take_pack(Acc& acc, const In* start, int64_t pack) const {
    const int64_t first = pack * kPack - before_run(start);
    if (first >= 0 && first + kPack <= run) {
      const Pack<In, kPack> values = device::load_pack<kPack>(start + first, true);
      UNROLL for (int j = 0; j < kPack; ++j) f.take(acc, values.at[j], first + j);
    } else {
      In values[kPack];  // loads without branches around them overlap
      UNROLL for (int j = 0; j < kPack; ++j) values[j] = start[has(first + j) ? first + j : 0];
      UNROLL for (int j = 0; j < kPack; ++j) {
        if (has(first + j)) f.take(acc, values[j], first + j);
      }
    }
  }
  DEVICE_FN bool has(int64_t i) const { return uint64_t(i) < uint64_t(run); }
};

// The innermost run is kept: neighbouring threads take neighbouring packs of it, and `rows` threads of a block share
// them.
template <class F>
struct ReduceColumns {
  using In = typename F::In;
  using Acc = typename F::Acc;
  // An accumulator for each column of a pack; not too many, for they are in registers and in shared memory.
  static constexpr int kPack = std::min(device::pack_size<In>(), 8), kBatch = F::kBatch, kMaxThreads = 256;
  struct Shared {
    Acc acc[kPack][kMaxThreads];
  };

  const In* x;
  Results<F> results;
  Dims kept, reduced;
  int64_t run, packs, chunk;  // packs of all outputs; reduced elements of a split
  device::Divider packs_in_run, tiles;
  int lanes;
  bool aligned;
  F f;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    b.threads([&](int t, Shared& s) {
      Acc acc[kPack];
      UNROLL for (int j = 0; j < kPack; ++j) acc[j] = f.zero();
      collect(b, t, acc);
      UNROLL for (int j = 0; j < kPack; ++j) s.acc[j][t] = acc[j];
    });
    for (int half = b.size() / lanes / 2; half > 0; half /= 2)
      b.threads([&](int t, Shared& s) {
        if (t >= half * lanes) return;
        UNROLL for (int j = 0; j < kPack; ++j) s.acc[j][t] = f.merge(s.acc[j][t], s.acc[j][t + half * lanes]);
      });
    b.threads([&](int t, Shared&) {
      int64_t tile, outer, first;
      const int64_t split = tiles(b.index(), tile);
      if (t >= lanes || !locate(tile * lanes + t, outer, first)) return;
      UNROLL for (int j = 0; j < kPack; ++j) {
        if (first + j < run) results.put(f, outer * run + first + j, split, s.acc[j][t]);
      }
    });
  }

 private:
  DEVICE_FN bool locate(int64_t pack, int64_t& outer, int64_t& first) const {
    if (pack >= packs) return false;
    outer = packs_in_run(pack, first);
    first *= kPack;
    return true;
  }
  DEVICE_FN void collect(const Block<Shared>& b, int t, Acc (&acc)[kPack]) const {
    int64_t tile, outer, first;
    const int64_t split = tiles(b.index(), tile);
    if (!locate(tile * lanes + t % lanes, outer, first)) return;
    const In* from = x + kept.offset(outer) + first;
    const int count = run - first < kPack ? int(run - first) : kPack, rows = b.size() / lanes;
    const int64_t end = (split + 1) * chunk < reduced.count ? (split + 1) * chunk : reduced.count;
    int64_t r = split * chunk + t / lanes;
    if (kBatch > 1 && aligned && reduced.rank <= 1) {
      const int64_t stride = reduced.strides[0];
      for (; r + (kBatch - 1) * rows < end; r += kBatch * rows) {
        Pack<In, kPack> batch[kBatch];
        UNROLL for (int u = 0; u < kBatch; ++u) batch[u] =
            device::load_pack<kPack>(from + (r + u * rows) * stride, true);
        UNROLL for (int u = 0; u < kBatch; ++u) {
          UNROLL for (int j = 0; j < kPack; ++j) f.take(acc[j], batch[u].at[j], r + u * rows);
        }
      }
    }
    NO_UNROLL for (; r < end; r += rows) {
      const Pack<In, kPack> pack = device::load_pack<kPack>(from + reduced.offset(r), aligned, count);
      UNROLL for (int j = 0; j < kPack; ++j) f.take(acc[j], pack.at[j], r);
    }
  }
};

// The second launch: a warp for each output.
template <class F>
struct MergeParts {
  using Acc = typename F::Acc;
  static constexpr int kMaxThreads = 256;
  Results<F> results;
  int64_t outputs;
  F f;
  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    auto acc = Team<32>::reduce(
        b, f.zero(),
        [&](int t) {
          Acc all = f.zero();
          const int64_t i = Team<32>::index(b, t);
          if (i < outputs)
            for (int64_t s = t % 32; s < results.splits; s += 32)
              all = f.merge(all, results.parts[i * results.splits + s]);
          return all;
        },
        [&](const Acc& a, const Acc& c) { return f.merge(a, c); });
    b.threads([&](int t, NoShared&) {
      const int64_t i = Team<32>::index(b, t);
      if (t % 32 == 0 && i < outputs) results.y[i] = f.finish(acc[t]);
    });
  }
};

// Reduces x into y, which has plan.outputs() elements.
template <class F>
void reduce(Context& context, const ReducePlan& plan, const typename F::In* x, typename F::Out* y, const F& f) {
  using Acc = typename F::Acc;
  static_assert(sizeof(Acc) <= 16);
  constexpr int64_t kLeast = 8;  // packs that each thread has if outputs are split
  const int64_t outputs = plan.outputs();
  if (outputs == 0) return;
  const StreamRef stream = context.stream();
  const int64_t enough = int64_t(device::multiprocessors(stream.device())) * 8;  // blocks to fill the GPU
  Results<F> results{y, nullptr, 1};
  // Into how many parts of `least` or more `units` are cut, so that `blocks` become enough.
  const auto cut = [&](int64_t blocks, int64_t units, int64_t least) {
    int64_t splits = std::clamp<int64_t>(std::min(enough / blocks, units / least), 1, 1024);
    const int64_t chunk = std::max<int64_t>(1, (units + splits - 1) / splits);
    results.splits = std::max<int64_t>(1, (units + chunk - 1) / chunk);
    if (results.splits > 1)
      results.parts =
          static_cast<Acc*>(context.scratch(size_t(checked_product(outputs, results.splits)) * sizeof(Acc)));
    return chunk;
  };

  if (plan.reduces_run || plan.reduced_count() == 0) {
    using Kernel = ReduceRuns<F, 0>;
    constexpr int kPack = Kernel::kPack;
    const bool alone = outputs == 1 && plan.reduced.rank == 0;  // then only the last pack may be short
    const bool aligned = device::is_pack_aligned<kPack>(x) && (alone || plan.run % kPack == 0);
    const int64_t in_run = (plan.run + (aligned ? 1 : 2) * (kPack - 1)) / kPack;
    const int64_t packs = plan.reduced_count() == 0 ? 0 : checked_product(plan.reduced.count, in_run);
    const auto launch = [&]<int kLanes>(int threads) {
      const int teams = kLanes ? threads / kLanes : 1;
      const int64_t chunk = kLanes ? packs : cut(outputs, packs, int64_t(threads) * kLeast);
      device::block_kernel<NoShared>(stream, {(outputs * results.splits + teams - 1) / teams, threads},
                                     ReduceRuns<F, kLanes>{x, results, plan.kept, plan.reduced, outputs, plan.run,
                                                           packs, chunk, device::Divider(in_run, packs), aligned, f});
    };
    if (packs <= 16)
      launch.template operator()<4>(outputs < 8192 ? 64 : 256);
    else if (packs <= 128 || (packs <= 256 && outputs >= enough))
      launch.template operator()<32>(outputs < 1024 ? 64 : 256);
    else
      launch.template operator()<0>(packs <= 2048 ? 128 : 512);
  } else {
    using Kernel = ReduceColumns<F>;
    constexpr int kPack = Kernel::kPack;
    const int64_t in_run = (plan.run + kPack - 1) / kPack, packs = checked_product(plan.kept.count, in_run);
    const bool aligned = device::is_pack_aligned<kPack>(x) && plan.run % kPack == 0;
    // Wide loads first, then threads that share a column.
    int lanes = 1;
    while (lanes < 32 && lanes < packs) lanes *= 2;
    int threads = 256;
    while (threads > 32 && threads / lanes > plan.reduced.count) {
      if (lanes < packs)
        lanes *= 2;
      else
        threads /= 2;
    }
    lanes = std::min(lanes, threads);
    // What lies in the cache waits for its loads rather than for memory: more blocks of fewer columns, down to 32 bytes
    // side by side.
    const bool small = plan.reduced.count * packs <= int64_t(1) << 18;
    while (small && lanes > 2 && (packs + lanes - 1) / lanes * 8 < enough && plan.reduced.count > threads / lanes)
      lanes /= 2;
    const int64_t tiles = (packs + lanes - 1) / lanes;
    const int64_t chunk = cut(tiles, plan.reduced.count, int64_t(threads / lanes) * kLeast);
    const int64_t blocks = checked_product(tiles, results.splits);
    device::block_kernel<typename Kernel::Shared>(
        stream, {blocks, threads},
        Kernel{x, results, plan.kept, plan.reduced, plan.run, packs, chunk, device::Divider(in_run, packs),
               device::Divider(tiles, blocks), lanes, aligned, f});
  }
  if (results.splits > 1)
    device::block_kernel<NoShared>(stream, {(outputs + 7) / 8, 256}, MergeParts<F>{results, outputs, f});
}

// Reduces x, of a type of the list, into y. Make is called with the count of values that are reduced into one:
// Make::template functor<T>(count).
template <class Make, class List>
void reduce_as(Context& context, const Tensor& x, const AxisSet& reduced, const Tensor& y) {
  const ReducePlan plan = plan_reduction(x.shape, reduced);
  dispatch(List{}, x.type, [&]<class T> {
    reduce(context, plan, x.as<const T>(), y.as<T>(), Make::template functor<T>(plan.reduced_count()));
  });
}

// A reduction of input 0 into output 0.
template <class Make, class List>
class Reduce : public Op {
 public:
  explicit Reduce(const NodeInfo& node) : axes_(node) {}
  void run(Context& context) const override {
    Tensor x = context.input(0);
    AxisSet reduced = axes_.of(context);
    const Tensor y = context.output(0, reduced_shape(x.shape, reduced, axes_.keep_dims()));
    gather_axes(context, x, reduced);
    reduce_as<Make, List>(context, x, reduced, y);
  }

 private:
  ReduceAxes axes_;
};

// Axes are an attribute, or since opset 13 or 18 an input in host memory.
template <class Op>
OpRow reduce_row(const char* name, Types types) {
  return {.name = name, .since = 1, .types = {in(0, types)}, .make = make<Op>, .host_inputs = {1}};
}

}  // namespace encore::ops
