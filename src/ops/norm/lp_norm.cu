// LpNormalization: values over the length of the vector that they make along an axis.
#include <cmath>

#include "device/divide.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/norm/l2_norm.h"
#include "ops/norm/rows.h"
#include "ops/reduce/length.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;
using device::Pack;
using device::PerThread;

// Of a vector of zeros nothing is left but zeros.
constexpr float kZerosStay = -1;
// The length is taken as `least` where it is less; or as it is, with kZerosStay.
template <class C>
DEVICE_FN C over(C value, C length, C least) {
  if (least == C(kZerosStay)) return length == C(0) ? C(0) : value / length;
  return value / (length < least ? least : length);
}

template <class T, class How>
struct NormalizeLength {
  using Teams = RowTeams<T, How>;
  using C = Compute<T>;
  using Shared = typename Teams::Shared;
  using Block = device::Block<Shared>;
  using Index = typename Teams::Index;
  static constexpr int kPack = How::kPack, kMaxThreads = Teams::kMaxThreads;

  const T* x;
  T* y;
  int64_t rows, width;
  ShortNorm<C> norm;
  C least;

  DEVICE_FN void operator()(Block& b, const Shared& s) const {
    const Teams teams(b, x, y, rows, width);
    PerThread<typename Teams::Kept, kMaxThreads> kept;
    teams.bring(b);
    auto sum = Teams::Together::reduce(
        b, C(0),
        [&](int t) {
          const T* from = teams.source(b, s, t);
          if constexpr (How::kKeep != 0) teams.read(b, s, t, kept[t], T(0.f));
          C all = 0;
          teams.each_slot(t, [&](int k, Index first) {
            C values[kPack];
            Teams::take(values, kept[t].at[k], from + first);
            UNROLL for (int j = 0; j < kPack; ++j) all += norm.term(values[j]);
          });
          return all;
        },
        Plus());
    b.threads([&](int t, Shared& s) {
      const T* from = teams.source(b, s, t);
      T* to = teams.target(b, s, t);
      const C length = norm.length(sum[t]);
      teams.each(t, [&](int k, Index first) {
        C values[kPack];
        Teams::take(values, kept[t].at[k], from + first);
        Pack<T, kPack> out;
        UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = T(over(values[j], length, least));
        device::store_pack(to + first, out, true);
      });
    });
    teams.take_back(b);
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
    UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = T(over(C(values.at[j]), length.at[j], C(kZerosStay)));
    device::store_pack(y + pack * kPack, out, true);
  }
};

template <class T>
bool has_packs(const Tensor& x, const Tensor& y, int64_t neighbours) {
  constexpr int kWide = device::pack_size<T>();
  return neighbours % kWide == 0 && device::is_pack_aligned<kWide>(x.as<const T>()) &&
         device::is_pack_aligned<kWide>(y.as<T>());
}

template <class T>
void divide_rows(StreamRef stream, const Tensor& x, const Tensor& y, int64_t width, float p, float least) {
  const int64_t rows = x.count() / width;
  spread_over_teams<T, device::pack_size<T>(), true>(
      stream, rows, width, has_packs<T>(x, y, width), [&]<class How>(device::Blocks grid) {
        using Kernel = NormalizeLength<T, How>;
        using C = Compute<T>;
        device::block_kernel<typename Kernel::Shared>(
            stream, grid, Kernel{x.as<const T>(), y.as<T>(), rows, width, ShortNorm<C>(p), C(least)});
      });
}

class LpNormalization : public Op {
 public:
  explicit LpNormalization(const NodeInfo& node) : axis_(node.get_int("axis", -1)) {
    p_ = read_choice<float>(node, "p", 2, {{1, 1.f}, {2, 2.f}});
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank(), axis = checked_axis(axis_, rank);
    const Tensor y = context.output(0, x.shape);
    if (y.count() == 0) return;
    const int64_t inner = x.shape.count(axis + 1, rank), width = x.shape[axis];
    dispatch(FloatList{}, x.type, [&]<class T>() {
      if (inner == 1) return divide_rows<T>(context.stream(), x, y, width, p_, kZerosStay);
      AxisSet reduced(size_t(rank), false);
      reduced[size_t(axis)] = true;
      using C = Compute<T>;
      const Tensor lengths{device::kTypeOf<C>, Where::device, x.shape.with(axis, 1),
                           context.scratch(size_t(x.count() / width) * sizeof(C))};
      reduce_length(context, x, reduced, p_, lengths);
      with_packs<device::pack_size<T>()>(has_packs<T>(x, y, inner), [&]<int kPack> {
        const int64_t packs = x.count() / kPack;
        device::for_each_index(context.stream(), packs,
                               DivideByLength<T, kPack>{x.as<const T>(), y.as<T>(), lengths.as<const C>(), inner,
                                                        Divider(inner / kPack, packs), Divider(width, packs)});
      });
    });
  }

 private:
  int64_t axis_;
  float p_;
};

class L2Norm : public Op {
 public:
  explicit L2Norm(const NodeInfo& node) : least_(node.get_float("least", 0)) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor y = context.output(0, x.shape);
    if (y.count() == 0) return;
    dispatch(FloatList{}, x.type, [&]<class T> { divide_rows<T>(context.stream(), x, y, x.shape.back(), 2, least_); });
  }

 private:
  const float least_;
};

}  // namespace

std::unique_ptr<Op> make_l2_norm(const NodeInfo& node) { return std::make_unique<L2Norm>(node); }

std::vector<OpRow> lp_norm_rows() {
  return {{.name = "LpNormalization", .since = 1, .types = {in(0, kFloats)}, .make = make<LpNormalization>}};
}

}  // namespace encore::ops
