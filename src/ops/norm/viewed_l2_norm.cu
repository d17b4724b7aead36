// Heads over their lengths. A few threads have a head, whose values they read twice: the second time they are near.
#include <array>

#include "device/divide.h"
#include "ops/dispatch.h"
#include "ops/norm/l2_norm.h"
#include "ops/overlap.h"
#include "ops/reduce/length.h"
#include "ops/reduce/team.h"
#include "ops/shape/strided.h"
#include "ops/shape/viewed.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Compute;
using device::Divider;
using device::NoShared;
using device::Pack;

constexpr int kMostAxes = 5;  // with that of a head's values

// How far apart heads are along each axis that counts them, the innermost one first.
using Strides = std::array<int64_t, kMostAxes - 1>;

template <class T, int kPack, int kLanes>
struct NormalizeHeads {
  using Together = Team<kLanes>;
  using C = Compute<T>;
  static constexpr int kMaxThreads = Together::kMaxThreads;

  const T *x, *factors;  // factors: null multiplies by none
  T* y;
  Strides of_x, of_factors;
  std::array<Divider, kMostAxes - 2> by_axis;
  int64_t heads;
  int packs;  // of a head
  ShortNorm<C> norm;
  C least;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    auto sum = Together::reduce(
        b, C(0),
        [&](int t) {
          const int64_t head = Together::index(b, t);
          C all = 0;
          if (head >= heads) return all;
          const T* const from = x + place(head, of_x);
          for (int pack = Together::lane(t); pack < packs; pack += kLanes) {
            const auto values = device::load_pack<kPack>(from + pack * kPack, true);
            UNROLL for (int j = 0; j < kPack; ++j) all += norm.term(C(values.at[j]));
          }
          return all;
        },
        Plus());
    b.threads([&](int t, NoShared&) {
      const int64_t head = Together::index(b, t);
      if (head >= heads) return;
      const C length = norm.length(sum[t]), over = length < least ? least : length;
      const C factor = factors ? C(factors[place(head, of_factors)]) : C(1);
      const T* const from = x + place(head, of_x);
      T* const to = y + head * packs * kPack;
      for (int pack = Together::lane(t); pack < packs; pack += kLanes) {
        const auto values = device::load_pack<kPack>(from + pack * kPack, true);
        Pack<T, kPack> out;
        UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = T(C(values.at[j]) / over * factor);
        device::store_pack(to + pack * kPack, out, true);
      }
    });
  }

 private:
  DEVICE_FN int64_t place(int64_t head, const Strides& strides) const {
    int64_t at = 0;
    UNROLL for (int i = 0; i < kMostAxes - 2; ++i) {
      int64_t along;
      head = by_axis[size_t(i)](head, along);
      at += along * strides[size_t(i)];
    }
    return at + head * strides[kMostAxes - 2];
  }
};

class ViewedL2Norm : public Op {
 public:
  explicit ViewedL2Norm(const NodeInfo& node)
      : least_(node.get_float("least", 0)), steps_(view_steps(node.get_string("x", ""))) {}

  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor* const factors = context.find_input(1);
    const size_t bytes = device::size_bytes(x.type);
    ViewedTensor seen = viewed(context, x, steps_);
    auto strides = seen.view.strides();
    if (!strides || (!strides->empty() && strides->back() != 1)) {
      make_dense(context, bytes, seen);
      strides = seen.view.strides();
    }
    const Shape shape = seen.view.shape();
    const int rank = shape.rank();
    if (rank == 0 || rank > kMostAxes)
      fail(Code::invalid_input, "heads ", shape.str(), " must have one to ", kMostAxes, " dimensions");
    if (factors && (factors->type != x.type || factors->shape.rank() > rank || factors->shape.rank() == 0 ||
                    factors->shape.back() != 1 || broadcast(factors->shape, shape) != shape))
      fail(Code::invalid_input, "heads ", shape.str(), " are not multiplied by ", factors->shape.str());
    const Tensor y = context.output(0, shape);
    if (y.count() == 0) return;
    const bool is_read = overlap(x, y) || (factors && overlap(*factors, y));
    void* const to = is_read ? context.scratch(y.bytes()) : y.data;
    dispatch(TypeList<float, Half, BFloat16>{}, x.type, [&]<class T> {
      launch(context, static_cast<const T*>(seen.start(bytes)), *strides, factors, shape, static_cast<T*>(to));
    });
    copy_bytes(context.stream(), to, y.data, int64_t(y.bytes()));
  }

 private:
  template <class T>
  void launch(Context& context, const T* x, const StridedView::Numbers& strides, const Tensor* factors,
              const Shape& shape, T* y) const {
    constexpr int kWide = device::pack_size<T>(), kThreads = 128;
    const int64_t width = shape.back(), heads = shape.count() / width;
    Strides of_x{}, of_factors{};
    std::array<int64_t, kMostAxes - 2> sizes;
    sizes.fill(1);
    bool is_aligned = width % kWide == 0 && device::is_pack_aligned<kWide>(x) && device::is_pack_aligned<kWide>(y);
    int64_t factor_stride = 1;
    for (int i = 0; i + 1 < shape.rank(); ++i) {
      const int axis = shape.rank() - 2 - i;
      const int64_t size = shape[axis];
      if (size_t(i) < sizes.size()) sizes[size_t(i)] = size;
      if (size != 1) of_x[size_t(i)] = strides[size_t(axis)];
      is_aligned &= of_x[size_t(i)] % kWide == 0;
      const int own = factors ? axis - (shape.rank() - factors->shape.rank()) : -1;
      if (own < 0) continue;
      if (factors->shape[own] != 1) of_factors[size_t(i)] = factor_stride;
      factor_stride *= factors->shape[own];
    }
    const auto with = [&]<int kPack, int kLanes> {
      using Kernel = NormalizeHeads<T, kPack, kLanes>;
      using C = typename Kernel::C;
      device::block_kernel<NoShared>(
          context.stream(), {(heads * kLanes + kThreads - 1) / kThreads, kThreads},
          Kernel{x,
                 factors ? factors->as<const T>() : nullptr,
                 y,
                 of_x,
                 of_factors,
                 {Divider(sizes[0], heads), Divider(sizes[1], heads), Divider(sizes[2], heads)},
                 heads,
                 int(width / kPack),
                 ShortNorm<C>(2),
                 C(least_)});
    };
    if (!is_aligned)
      with.template operator()<1, 32>();
    else if (width <= 8 * kWide)
      with.template operator()<kWide, 8>();
    else
      with.template operator()<kWide, 32>();
  }

  const float least_;
  const std::vector<ViewStep> steps_;
};

}  // namespace

std::unique_ptr<Op> make_viewed_l2_norm(const NodeInfo& node) { return std::make_unique<ViewedL2Norm>(node); }

}  // namespace encore::ops
