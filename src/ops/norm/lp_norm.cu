// LpNormalization: values over the length of the vector that they make along an axis.
#include <cmath>

#include "device/divide.h"
#include "ops/dispatch.h"
#include "ops/reduce/length.h"
#include "ops/reduce/team.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Compute;
using device::Divider;
using device::NoShared;
using device::Pack;
using device::PerThread;

// Of a vector of zeros nothing is left but zeros.
template <class C>
DEVICE_FN C over(C value, C length) {
  return length == C(0) ? C(0) : value / length;
}

template <class T, int kPack, int kLanes, int kKeep>
struct NormalizeLength {
  using C = Compute<T>;
  using Together = Team<kLanes>;
  static constexpr int kMaxThreads = Together::kMaxThreads;
  using Packs = Deal<kPack, kKeep>;
  using Kept = typename Packs::template Kept<C>;

  const T* x;
  T* y;
  int64_t rows, width;
  Norm<C> norm;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    PerThread<Kept, kMaxThreads> kept;
    auto sum = Together::reduce(
        b, C(0),
        [&](int t) {
          C all = 0;
          each(b, t, [&](int k, int64_t first) {
            load(kept[t].at[k], first);
            UNROLL for (int j = 0; j < kPack; ++j) { all += norm.term(kept[t].at[k][j]); }
          });
          return all;
        },
        Plus());
    b.threads([&](int t, NoShared&) {
      const C length = norm.length(sum[t]);
      each(b, t, [&](int k, int64_t first) {
        if constexpr (kKeep == 0) load(kept[t].at[k], first);
        Pack<T, kPack> out;
        UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = T(over(kept[t].at[k][j], length));
        device::store_pack(y + first, out, true);
      });
    });
  }

 private:
  DEVICE_FN void load(C (&values)[kPack], int64_t first) const {
    const auto pack = device::load_pack<kPack>(x + first, true);
    UNROLL for (int j = 0; j < kPack; ++j) values[j] = C(pack.at[j]);
  }
  template <class F>
  DEVICE_FN void each(const Block<NoShared>& b, int t, F f) const {
    const int64_t row = Together::index(b, t);
    if (row >= rows) return;
    Packs::each(width, Together::lane(t), Together::size(b),
                [&](int k, auto first) { f(k, row * width + int64_t(first)); });
  }
};

// Vectors whose values are `inner` apart.
template <class T, int kPack>
struct DivideByLength {
  using C = Compute<T>;
  const T* x;
  T* y;
  const C* lengths;
  int64_t inner;
  Divider by_inner, by_axis;
  DEVICE_FN void operator()(int64_t pack) const {
    int64_t column, at;
    const int64_t outer = by_axis(by_inner(pack, column), at);
    const auto values = device::load_pack<kPack>(x + pack * kPack, true);
    const auto length = device::load_pack<kPack>(lengths + outer * inner + column * kPack, true);
    Pack<T, kPack> out;
    UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = T(over(C(values.at[j]), length.at[j]));
    device::store_pack(y + pack * kPack, out, true);
  }
};

class LpNormalization : public Op {
 public:
  explicit LpNormalization(const NodeInfo& node) : axis_(node.get_int("axis", -1)) {
    const int64_t p = node.get_int("p", 2);
    require(p == 1 || p == 2, "p is ", p, "; it must be 1 or 2");
    p_ = float(p);
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank(), axis = checked_axis(axis_, rank);
    const Tensor y = context.output(0, x.shape);
    if (y.count() == 0) return;
    const int64_t inner = x.shape.count(axis + 1, rank), width = x.shape[axis];
    dispatch(FloatList{}, x.type, [&]<class T>() {
      constexpr int kWide = device::pack_size<T>();
      const bool aligned = (inner == 1 ? width : inner) % kWide == 0 &&
                           device::is_pack_aligned<kWide>(x.as<const T>()) && device::is_pack_aligned<kWide>(y.as<T>());
      if (inner == 1) {
        with_packs<kWide>(aligned, [&]<int kPack> { divide_rows<T, kPack>(context.stream(), x, y, width); });
        return;
      }
      AxisSet reduced(size_t(rank), false);
      reduced[size_t(axis)] = true;
      using C = Compute<T>;
      const Tensor lengths{device::kTypeOf<C>, Where::device, x.shape.with(axis, 1),
                           context.scratch(size_t(x.count() / width) * sizeof(C))};
      reduce_length(context, x, reduced, p_, lengths);
      with_packs<kWide>(aligned, [&]<int kPack> {
        const int64_t packs = x.count() / kPack;
        device::for_each_index(context.stream(), packs,
                               DivideByLength<T, kPack>{x.as<const T>(), y.as<T>(), lengths.as<const C>(), inner,
                                                        Divider(inner / kPack, packs), Divider(width, packs)});
      });
    });
  }

 private:
  template <class T, int kPack>
  void divide_rows(StreamRef stream, const Tensor& x, const Tensor& y, int64_t width) const {
    const int64_t rows = x.count() / width;
    spread_rows<kPack, true>(stream, rows, width, [&]<int kLanes, int kKeep>(device::Blocks grid) {
      device::block_kernel<NoShared>(
          stream, grid,
          NormalizeLength<T, kPack, kLanes, kKeep>{x.as<const T>(), y.as<T>(), rows, width, Norm<Compute<T>>(p_)});
    });
  }

  int64_t axis_;
  float p_;
};

}  // namespace

std::vector<OpRow> lp_norm_rows() {
  return {{.name = "LpNormalization", .since = 1, .types = {in(0, kFloats)}, .make = make<LpNormalization>}};
}

}  // namespace encore::ops
