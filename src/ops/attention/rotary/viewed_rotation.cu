#include "ops/attention/rotary/viewed_rotation.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "device/divide.h"
#include "device/prefetch.h"
#include "ops/dispatch.h"
#include "ops/elementwise/any_floats.h"
#include "ops/overlap.h"
#include "ops/reduce/team.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Divider;
using device::NoShared;
using device::Pack;
using device::PerThread;

constexpr int kRank = 4, kRows = 3;  // dimensions, and those that count heads

// How far apart heads are along each of the result's dimensions.
using Strides = std::array<int64_t, kRows>;

// A team of kLanes has a head; each of its threads has kKeep packs of the first half, and with them those that they are
// rotated with. All that a head needs is asked for at once.
template <class T, int kPack, int kLanes, int kKeep>
struct RotateViewed {
  using Together = Team<kLanes>;
  static constexpr int kMaxThreads = Together::kMaxThreads;
  static constexpr bool kBeginsEarly = true;
  using Floats = Pack<float, kPack>;
  struct Both {
    Floats low, high;  // of the first half, and of the second
  };
  struct Held {
    Both x[kKeep], cos[kKeep], sin[kKeep], gamma[kKeep];
  };

  AnyFloats x, cos, sin, gamma;  // gamma: without data, heads are not normed
  T* y;
  Strides of_x, of_cos, of_sin;
  Divider by_inner, by_middle;
  int64_t heads;
  int half, packs;  // values of a half, and packs
  float per_value, epsilon;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    PerThread<Held, kMaxThreads> held;
    auto squares = Together::reduce(
        b, 0.f,
        [&](int t) {
          const int64_t head = Together::index(b, t);
          if (head < heads) prefetch(head, t);
          b.wait();
          return head < heads ? load(held[t], head, t) : 0.f;
        },
        Plus());
    b.threads([&](int t, NoShared&) {
      const int64_t head = Together::index(b, t);
      if (head < heads) store(held[t], head, t, 1.f / std::sqrt(squares[t] * per_value + epsilon));
    });
  }

 private:
  // f(k, first value) for each pack of a thread.
  template <class F>
  DEVICE_FN void each(int t, F f) const {
    UNROLL for (int k = 0; k < kKeep; ++k) {
      const int pack = Together::lane(t) + k * kLanes;
      if (pack < packs) f(k, pack * kPack);
    }
  }
  DEVICE_FN int64_t place(int64_t head, const Strides& strides) const {
    int64_t inner, middle;
    const int64_t outer = by_middle(by_inner(head, inner), middle);
    return outer * strides[0] + middle * strides[1] + inner * strides[2];
  }
  DEVICE_FN Both both(const AnyFloats& from, int64_t first) const {
    return {from.pack<kPack>(first), from.pack<kPack>(first + half)};
  }
  DEVICE_FN void prefetch(int64_t head, int t) const {
    each(t, [&](int, int first) {
      device::prefetch(cos.address(place(head, of_cos) + first));
      device::prefetch(sin.address(place(head, of_sin) + first));
      if (gamma.data) device::prefetch(gamma.address(first));
    });
  }
  // The sum of the thread's squares.
  DEVICE_FN float load(Held& held, int64_t head, int t) const {
    const int64_t in_x = place(head, of_x), in_cos = place(head, of_cos), in_sin = place(head, of_sin);
    each(t, [&](int k, int first) {
      held.x[k] = both(x, in_x + first);
      held.cos[k] = both(cos, in_cos + first);
      held.sin[k] = both(sin, in_sin + first);
      if (gamma.data) held.gamma[k] = both(gamma, first);
    });
    float all = 0;
    each(t, [&](int k, int) {
      const Both& own = held.x[k];
      UNROLL for (int i = 0; i < kPack; ++i) all += own.low.at[i] * own.low.at[i] + own.high.at[i] * own.high.at[i];
    });
    return all;
  }
  DEVICE_FN void store(const Held& held, int64_t head, int t, float over_root) const {
    T* const to = y + head * (2 * half);
    each(t, [&](int k, int first) {
      Both own = held.x[k];
      const Both &c = held.cos[k], &s = held.sin[k];
      Pack<T, kPack> low, high;
      UNROLL for (int i = 0; i < kPack; ++i) {
        if (gamma.data) {
          own.low.at[i] *= over_root * held.gamma[k].low.at[i];
          own.high.at[i] *= over_root * held.gamma[k].high.at[i];
        }
        low.at[i] = T(own.low.at[i] * c.low.at[i] - own.high.at[i] * s.low.at[i]);
        high.at[i] = T(own.high.at[i] * c.high.at[i] + own.low.at[i] * s.high.at[i]);
      }
      device::store_pack(to + first, low, true);
      device::store_pack(to + half + first, high, true);
    });
  }
};

// Heads of a tensor, whose values are neighbours.
struct Heads {
  AnyFloats data;
  Shape shape;
  std::vector<int64_t> strides;

  // Along the result's dimensions, which are in this order.
  Strides in_order(const std::vector<int64_t>& order) const {
    Strides made{};
    for (size_t i = 0; i < kRows; ++i) {
      const int axis = int(order[i]) - (kRank - shape.rank());
      if (axis >= 0 && shape[axis] != 1) made[i] = strides[size_t(axis)];
    }
    return made;
  }
  // Whether each begins with a pack, if halves do.
  template <int kPack>
  bool has_packs() const {
    return data.has_packs<kPack>() &&
           std::all_of(strides.begin(), strides.end() - 1, [](int64_t stride) { return stride % kPack == 0; });
  }
};

Heads heads_of(Context& context, const Tensor& tensor, const std::vector<ViewStep>& steps) {
  const size_t bytes = device::size_bytes(tensor.type);
  ViewedTensor seen = viewed(context, tensor, steps);
  auto strides = seen.view.strides();
  if (!strides || (!strides->empty() && strides->back() != 1)) {
    make_dense(context, bytes, seen);
    strides = seen.view.strides();
  }
  return {{seen.start(bytes), tensor.type}, seen.view.shape(), *strides};
}

class Rotation : public Op {
 public:
  explicit Rotation(const NodeInfo& node)
      : steps_(view_steps(node.get_string("x", ""))),
        order_(node.find_ints("y").value()),
        epsilon_(node.get_float("epsilon", 0)) {}

  void run(Context& context) const override {
    const Heads x = heads_of(context, context.input(0), steps_), cos = heads_of(context, context.input(1), {}),
                sin = heads_of(context, context.input(2), {});
    const Shape shape = broadcast(broadcast(x.shape, cos.shape), sin.shape);
    require(x.shape.rank() == kRank && shape.rank() == kRank, "heads ", x.shape.str(), " are rotated by ",
            cos.shape.str(), " and ", sin.shape.str(), "; they must have ", kRank, " dimensions");
    const int64_t size = shape.back();
    require(size % 2 == 0 && size <= kLargestRotatedHead && x.shape.back() == size && cos.shape.back() == size &&
                sin.shape.back() == size,
            "heads of ", x.shape.back(), " values are rotated by ", cos.shape.str(), " and ", sin.shape.str());
    const Tensor* const gamma = context.find_input(3);
    require(!gamma || gamma->shape == Shape{size}, "the norm of heads of ", size, " multiplies by ",
            gamma ? gamma->shape.str() : "");
    std::vector<int64_t> dims;
    for (const int64_t axis : order_) dims.push_back(shape[int(axis)]);
    const Tensor wanted = context.output(0, Shape(dims));
    Tensor y = wanted;
    if (y.count() == 0) return;
    for (int i = 0; i < 3; ++i)
      if (y.data == wanted.data && overlap(context.input(i), wanted)) y.data = context.scratch(y.bytes());
    dispatch(TypeList<float, Half, BFloat16>{}, y.type, [&]<class T> {
      constexpr int kPack = device::pack_size<T>();
      const AnyFloats factors = gamma ? AnyFloats{gamma->data, gamma->type} : AnyFloats{};
      const bool aligned = size / 2 % kPack == 0 && x.has_packs<kPack>() && cos.has_packs<kPack>() &&
                           sin.has_packs<kPack>() && factors.has_packs<kPack>() &&
                           device::is_pack_aligned<kPack>(y.as<T>());
      const auto launch = [&]<int kOwn, int kLanes, int kKeep> {
        constexpr int kThreads = 128;
        const int64_t heads = y.count() / size, teams = kThreads / kLanes;
        using Kernel = RotateViewed<T, kOwn, kLanes, kKeep>;
        device::block_kernel<NoShared>(
            context.stream(), {(heads + teams - 1) / teams, kThreads},
            Kernel{x.data, cos.data, sin.data, factors, y.as<T>(), x.in_order(order_), cos.in_order(order_),
                   sin.in_order(order_), Divider(dims[2], heads), Divider(dims[1], heads), heads, int(size / 2),
                   int(size / 2 / kOwn), 1.f / float(size), epsilon_});
      };
      if (!aligned)
        launch.template operator()<1, 32, 4>();
      else if (size / 2 <= 8 * kPack)
        launch.template operator()<kPack, 8, 1>();
      else
        launch.template operator()<kPack, 32, 1>();
    });
    copy_bytes(context.stream(), y.data, wanted.data, int64_t(y.bytes()));
  }

 private:
  const std::vector<ViewStep> steps_;
  const std::vector<int64_t> order_;
  const float epsilon_;
};

}  // namespace

Attributes attributes_of(const ViewedRotation& how) {
  Attributes attributes{{"x", text_of(how.x)}, {"y", how.y_order}};
  if (how.epsilon) attributes["epsilon"] = *how.epsilon;
  return attributes;
}

std::unique_ptr<Op> make_viewed_rotation(const NodeInfo& node) { return std::make_unique<Rotation>(node); }

}  // namespace encore::ops
