// GlobalAveragePool, GlobalMaxPool and GlobalLpPool: one number for each plane.
#include <limits>

#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/nn/window.h"
#include "ops/reduce/length.h"
#include "ops/reduce/reductions.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Compute;
using device::NoShared;
using device::PerThread;

struct Mean {
  static constexpr auto reduce = reduce_mean;  // over any dimensions
  template <class C>
  DEVICE_FN static C zero() {
    return C(0);
  }
  template <class C>
  DEVICE_FN static C join(C a, C b) {
    return a + b;
  }
  template <class C>
  DEVICE_FN static C finish(C all, int64_t count) {
    return all / C(count);
  }
};
struct Maximum {  // NaN wins
  static constexpr auto reduce = reduce_max;
  template <class C>
  DEVICE_FN static C zero() {
    return -std::numeric_limits<C>::infinity();
  }
  template <class C>
  DEVICE_FN static C join(C a, C b) {
    return a > b || a != a ? a : b;
  }
  template <class C>
  DEVICE_FN static C finish(C all, int64_t) {
    return all;
  }
};

// What `lanes` threads see of a plane, `lane` being one of them.
template <class Pooling, class T>
DEVICE_FN Compute<T> partial(const T* plane, int64_t width, bool aligned, int lane, int lanes) {
  using C = Compute<T>;
  constexpr int kPack = device::pack_size<T>();
  C all = Pooling::template zero<C>();
  if (aligned) {
    for (int64_t i = int64_t(lane) * kPack; i < width; i += int64_t(lanes) * kPack) {
      const auto values = device::load_pack<kPack>(plane + i, true);
      UNROLL for (int k = 0; k < kPack; ++k) all = Pooling::join(all, C(values.at[k]));
    }
  } else {
    for (int64_t i = lane; i < width; i += lanes) all = Pooling::join(all, C(plane[i]));
  }
  return all;
}

constexpr int kThreads = 256;

template <class T, class Pooling>
struct PoolLargePlane {  // a block each
  const T* x;
  T* y;
  int64_t width;
  bool aligned;
  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    using C = Compute<T>;
    const T* plane = x + b.index() * width;
    const C all = b.reduce(
        Pooling::template zero<C>(), [&](int t) { return partial<Pooling>(plane, width, aligned, t, b.size()); },
        [](C left, C right) { return Pooling::join(left, right); });
    b.threads([&](int t, NoShared&) {
      if (t == 0) y[b.index()] = T(Pooling::finish(all, width));
    });
  }
};

template <class T, class Pooling, int kLanes>
struct PoolSmallPlane {  // kLanes threads each
  static constexpr int kMaxThreads = kThreads, kPlanes = kThreads / kLanes;
  const T* x;
  T* y;
  int64_t planes, width;
  bool aligned;
  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    using C = Compute<T>;
    const int64_t first = b.index() * kPlanes;
    PerThread<C, kMaxThreads> all;
    b.template reduce_groups<kLanes>(
        all,
        [&](int t) {
          const int64_t plane = first + t / kLanes;
          return plane < planes ? partial<Pooling>(x + plane * width, width, aligned, t % kLanes, kLanes) : C(0);
        },
        [](C left, C right) { return Pooling::join(left, right); });
    b.threads([&](int t, NoShared&) {
      const int64_t plane = first + t / kLanes;
      if (t % kLanes == 0 && plane < planes) y[plane] = T(Pooling::finish(all[t], width));
    });
  }
};

template <class Pooling>
class GlobalPool : public Op {
 public:
  explicit GlobalPool(const NodeInfo& node) : layout_(layout_of(node)) {
    const auto x = node.input_dims(0);
    require(!x || x->size() >= 2, "the input has rank ", x ? x->size() : 0, "; it needs batch and channels");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank();
    require(rank >= 2, "the input has shape ", x.shape.str(), "; it needs batch and channels");
    const bool last = layout_ == Layout::channels_last;
    Shape shape = x.shape;
    AxisSet between(static_cast<size_t>(rank));
    for (int i = 2; i < rank; ++i) {
      const int axis = last ? i - 1 : i;
      shape = shape.with(axis, 1);
      between[size_t(axis)] = true;
    }
    const int64_t planes = shape.count(), width = last ? x.shape.count(1, rank - 1) : x.shape.count(2, rank);
    require(width > 0 || planes == 0, "the input ", x.shape.str(), " has nothing to pool");
    const Tensor y = context.output(0, shape);
    if (last) return Pooling::reduce(context, x, between, y);
    dispatch(FloatList{}, x.type, [&]<class T>() {
      constexpr int kPack = device::pack_size<T>();
      const bool aligned = width % kPack == 0 && device::is_pack_aligned<kPack>(x.as<const T>());
      const auto small = [&]<int kLanes>() {
        using Kernel = PoolSmallPlane<T, Pooling, kLanes>;
        device::block_kernel<NoShared>(context.stream(), {(planes + Kernel::kPlanes - 1) / Kernel::kPlanes, kThreads},
                                       Kernel{x.as<const T>(), y.as<T>(), planes, width, aligned});
      };
      if (width <= 64)
        small.template operator()<8>();
      else if (width <= 2048)
        small.template operator()<32>();
      else
        device::block_kernel<NoShared>(context.stream(), {planes, kThreads},
                                       PoolLargePlane<T, Pooling>{x.as<const T>(), y.as<T>(), width, aligned});
    });
  }

 private:
  Layout layout_;
};

class GlobalLpPool : public Op {
 public:
  explicit GlobalLpPool(const NodeInfo& node) : p_(power_of(node)) {
    const auto x = node.input_dims(0);
    require(!x || x->size() >= 2, "the input has rank ", x ? x->size() : 0, "; it needs batch and channels");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank();
    require(rank >= 2, "the input has shape ", x.shape.str(), "; it needs batch and channels");
    AxisSet reduced(size_t(rank), true);
    reduced[0] = reduced[1] = false;
    reduce_length(context, x, reduced, p_, context.output(0, reduced_shape(x.shape, reduced, true)));
  }

 private:
  float p_;
};

}  // namespace

std::vector<OpRow> global_pool_rows() {
  return {
      {.name = "GlobalLpPool", .since = 1, .types = {in(0, kFloats)}, .make = make<GlobalLpPool>},
      {.name = "GlobalAveragePool", .since = 1, .types = {in(0, kFloats)}, .make = make<GlobalPool<Mean>>},
      {.name = "GlobalMaxPool", .since = 1, .types = {in(0, kFloats)}, .make = make<GlobalPool<Maximum>>},
      {.domain = kChannelsLast,
       .name = "GlobalAveragePool",
       .since = 1,
       .types = {in(0, kChannelsLastFloats)},
       .make = make<GlobalPool<Mean>>},
      {.domain = kChannelsLast,
       .name = "GlobalMaxPool",
       .since = 1,
       .types = {in(0, kChannelsLastFloats)},
       .make = make<GlobalPool<Maximum>>},
  };
}

}  // namespace encore::ops
