#include "ops/attention/rotary/viewed_rotation.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "device/divider_of.h"
#include "device/prefetch.h"
#include "device/words.h"
#include "ops/dispatch.h"
#include "ops/elementwise/any_floats.h"
#include "ops/elementwise/digits.h"
#include "ops/overlap.h"
#include "ops/reduce/team.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

using device::Block;
using device::NoShared;
using device::Pack;
using device::PerThread;

constexpr int kRank = 4, kRows = 3;  // dimensions, and those that count heads

// How far apart heads are along each of the result's dimensions.
template <class Index>
using Strides = std::array<Index, kRows>;

// One tensor of heads, which are counted by an Index, as their values are.
template <class T, class Values, class Index>
struct Side {
  Values x, gamma;  // gamma: without data, heads are not normed
  T* y;
  Strides<Index> of_x, of_cos, of_sin;
  device::DividerOf<Index> by_inner, by_middle;
  int64_t heads;
  float epsilon;
};

// A team of kLanes has a head; each of its threads has kKeep packs of the first half, and with them those that they are
// rotated with. Where pairs are neighbours these are the next packs, and pairs are within packs, if not single. All
// that a head needs is asked for at once. A block has heads of one side. Single values are of any float type, and heads
// as many as memory holds; packs are of T or float, and heads and their values are counted in 32 bits.
template <class T, int kPack, int kLanes, int kKeep, int kSides>
struct RotateViewed {
  static constexpr bool kInPacks = kPack > 1;
  using Together = Team<kLanes>;
  static constexpr int kMaxThreads = Together::kMaxThreads;
  static constexpr bool kBeginsEarly = true;
  using Values = std::conditional_t<kInPacks, FloatsOr<T>, AnyFloats>;
  using Index = std::conditional_t<kInPacks, int, int64_t>;
  using Own = Side<T, Values, Index>;
  using Floats = Pack<float, kPack>;
  template <class Packs>
  struct Both {
    Packs low, high;  // of the first half, and of the second, or of neighbours
  };
  using Raw = Both<AnyFloats::Raw<kPack>>;
  struct Held {
    Both<Floats> x[kKeep];
    Raw cos[kKeep], sin[kKeep], gamma[kKeep];
  };
  // A head, and what it is rotated by.
  struct Place {
    Values x, cos, sin;
  };

  Own sides[kSides];
  int64_t blocks;  // of the first side
  Values cos, sin;
  int half, packs;  // values of a half, and packs
  int rest;         // packs behind both halves, which stay
  bool interleaved;
  float per_value;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    const bool is_second = kSides > 1 && b.index() >= blocks;
    const Own& side = sides[is_second];
    const int64_t before = is_second ? blocks * (b.size() / kLanes) : 0;  // heads
    PerThread<Held, kMaxThreads> held;
    auto squares = Together::reduce(
        b, 0.f,
        [&](int t) {
          const int64_t head = Together::index(b, t) - before;
          const bool there = head < side.heads;
          const Place place = there ? place_of(side, Index(head)) : Place{};
          if (there) prefetch(side, place, head == 0, t);
          b.wait();
          if (there && rest > 0) keep_rest(side, place, head, t);
          return there ? load(held[t], side, place, t) : 0.f;
        },
        Plus());
    b.threads([&](int t, NoShared&) {
      const int64_t head = Together::index(b, t) - before;
      if (head < side.heads) store(held[t], side, head, t, inverse_root_for<T>(squares[t] * per_value + side.epsilon));
    });
  }

 private:
  DEVICE_FN Place place_of(const Own& side, Index head) const {
    Index inner, middle;
    const Index outer = side.by_middle(side.by_inner(head, inner), middle);
    const auto at = [&](const Values& of, const Strides<Index>& strides) {
      return Values{AnyFloats{of.address(outer * strides[0] + middle * strides[1] + inner * strides[2]), of.type}};
    };
    return {at(side.x, side.of_x), at(cos, side.of_cos), at(sin, side.of_sin)};
  }
  // f(k, first value) for each pack of a thread.
  template <class F>
  DEVICE_FN void each(int t, F f) const {
    UNROLL for (int k = 0; k < kKeep; ++k) {
      const int pack = Together::lane(t) + k * kLanes;
      if (pack < packs) f(k, pack * kPack);
    }
  }
  // Where the packs are of which the first one would begin there in the first half.
  DEVICE_FN int low(int first) const { return interleaved ? 2 * first : first; }
  DEVICE_FN int high(int first) const { return interleaved ? 2 * first + kPack : first + half; }
  DEVICE_FN Raw raw(const Values& from, int first) const {
    return {from.template raw<kPack>(low(first)), from.template raw<kPack>(high(first))};
  }
  DEVICE_FN static Both<Floats> floats(const Values& of, const Raw& raw) {
    return {of.floats(raw.low), of.floats(raw.high)};
  }
  DEVICE_FN void prefetch(const Own& side, const Place& place, bool is_first, int t) const {
    each(t, [&](int, int first) {
      device::prefetch(place.cos.address(low(first)));
      device::prefetch(place.sin.address(low(first)));
      if (side.gamma.data && is_first) device::prefetch(side.gamma.address(low(first)));
    });
  }
  // The sum of the thread's squares.
  DEVICE_FN float load(Held& held, const Own& side, const Place& place, int t) const {
    Raw x[kKeep];
    each(t, [&](int k, int first) {
      x[k] = raw(place.x, first);
      held.cos[k] = raw(place.cos, first);
      held.sin[k] = raw(place.sin, first);
      if (side.gamma.data) held.gamma[k] = raw(side.gamma, first);
    });
    float all = 0;
    each(t, [&](int k, int) {
      const auto& [low, high] = held.x[k] = floats(side.x, x[k]);
      UNROLL for (int i = 0; i < kPack; ++i) all += low.at[i] * low.at[i] + high.at[i] * high.at[i];
    });
    return all;
  }
  DEVICE_FN T* target(const Own& side, int64_t head) const { return side.y + head * (2 * half + rest * kPack); }
  DEVICE_FN void keep_rest(const Own& side, const Place& place, int64_t head, int t) const {
    T* const to = target(side, head);
    for (int pack = Together::lane(t); pack < rest; pack += kLanes) {
      const int first = 2 * half + pack * kPack;
      const Floats values = place.x.floats(place.x.template raw<kPack>(first));
      Pack<T, kPack> out;
      UNROLL for (int i = 0; i < kPack; ++i) out.at[i] = T(values.at[i]);
      device::store_whole(to + first, out);
    }
  }
  DEVICE_FN void store(const Held& held, const Own& side, int64_t head, int t, float over_root) const {
    T* const to = target(side, head);
    each(t, [&](int k, int first) {
      Both<Floats> x = held.x[k];
      if (side.gamma.data) {
        const Both<Floats> gamma = floats(side.gamma, held.gamma[k]);
        UNROLL for (int i = 0; i < kPack; ++i) {
          x.low.at[i] *= over_root * gamma.low.at[i];
          x.high.at[i] *= over_root * gamma.high.at[i];
        }
      }
      const Both<Floats> c = floats(cos, held.cos[k]), s = floats(sin, held.sin[k]);
      Both<Pack<T, kPack>> y;
      if (kInPacks && interleaved) {
        rotate_neighbours(x.low, c.low, s.low, y.low);
        rotate_neighbours(x.high, c.high, s.high, y.high);
      } else {
        UNROLL for (int i = 0; i < kPack; ++i) {
          y.low.at[i] = T(x.low.at[i] * c.low.at[i] - x.high.at[i] * s.low.at[i]);
          y.high.at[i] = T(x.high.at[i] * c.high.at[i] + x.low.at[i] * s.high.at[i]);
        }
      }
      device::store_whole(to + low(first), y.low);
      device::store_whole(to + high(first), y.high);
    });
  }
  DEVICE_FN static void rotate_neighbours(const Floats& x, const Floats& c, const Floats& s, Pack<T, kPack>& y) {
    UNROLL for (int i = 0; i + 1 < kPack; i += 2) {
      y.at[i] = T(x.at[i] * c.at[i] - x.at[i + 1] * s.at[i]);
      y.at[i + 1] = T(x.at[i + 1] * c.at[i + 1] + x.at[i] * s.at[i + 1]);
    }
  }
};

// Heads of a tensor, whose values are neighbours.
struct Heads {
  AnyFloats data;
  Shape shape;
  StridedView::Numbers strides;

  // Along the result's dimensions, which are in this order.
  template <class Index>
  Strides<Index> in_order(const std::vector<int64_t>& order) const {
    Strides<Index> made{};
    for (size_t i = 0; i < kRows; ++i) {
      const int axis = int(order[i]) - (kRank - shape.rank());
      if (axis >= 0 && shape[axis] != 1) made[i] = Index(strides[size_t(axis)]);
    }
    return made;
  }
  // Whether each begins with a pack of what a T has packs of, if halves do.
  template <class T>
  bool in_packs() const {
    constexpr int kPack = device::pack_size<T>();
    int64_t farthest = 0;  // as packs are counted in 32 bits
    for (size_t axis = 0; axis < strides.size(); ++axis) farthest += (shape[int(axis)] - 1) * std::abs(strides[axis]);
    return FloatsOr<T>::has_packs(data) && farthest < int64_t(1) << 31 &&
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

// How a tensor of heads is rotated.
struct Rotated {
  int x, gamma;  // inputs
  std::vector<ViewStep> steps;
  std::vector<int64_t> order;
  float epsilon;
};

Rotated rotated_as(const NodeInfo& node, const std::string& prefix, int x, int gamma) {
  const auto named = [&](const char* attribute) { return prefix + attribute; };
  return {x, gamma, view_steps(node.get_string(named("x").c_str(), "")), node.find_ints(named("y").c_str()).value(),
          node.get_float(named("epsilon").c_str(), 0)};
}

class Rotation : public Op {
 public:
  explicit Rotation(const NodeInfo& node) : interleaved_(node.get_int(kInterleaved, 0) != 0) {
    rotated_.push_back(rotated_as(node, "", 0, 3));
    if (node.output_count() > 1) rotated_.push_back(rotated_as(node, kOther, 4, 5));
  }

  void run(Context& context) const override {
    const Heads cos = heads_of(context, context.input(1), {}), sin = heads_of(context, context.input(2), {});
    std::vector<Made> made;
    for (size_t i = 0; i < rotated_.size(); ++i) made.push_back(make(context, int(i), cos, sin));
    if (std::ranges::all_of(made, [](const Made& one) { return one.y.count() == 0; })) return;
    require(made.front().x.shape.back() == made.back().x.shape.back(), "heads of ", made.front().x.shape.back(),
            " values are rotated with heads of ", made.back().x.shape.back());
    dispatch(TypeList<float, Half, BFloat16>{}, made[0].y.type, [&]<class T> {
      if (made.size() == 1)
        launch<T, 1>(context, made, cos, sin);
      else
        launch<T, 2>(context, made, cos, sin);
    });
    for (const Made& one : made) copy_bytes(context.stream(), one.y.data, one.wanted, int64_t(one.y.bytes()));
  }

 private:
  struct Made {
    Heads x;
    AnyFloats gamma;
    Tensor y;
    void* wanted;  // where y is to be
    const Rotated* how;
  };

  Made make(Context& context, int i, const Heads& cos, const Heads& sin) const {
    const Rotated& how = rotated_[size_t(i)];
    const Heads x = heads_of(context, context.input(how.x), how.steps);
    const auto by = [&] { return text(" are rotated by ", cos.shape.str(), " and ", sin.shape.str()); };
    if (x.shape.rank() != kRank || cos.shape.rank() == 0 || sin.shape.rank() == 0)
      fail(Code::invalid_input, "heads ", x.shape.str(), by(), "; they must have ", kRank, " dimensions");
    const int64_t size = cos.shape.back(), all = x.shape.back();
    if (size <= 0 || size % 2 != 0 || size > kLargestRotatedHead || size > all || sin.shape.back() != size)
      fail(Code::invalid_input, "heads of ", all, " values", by());
    const Shape shape = broadcast(broadcast(x.shape.with(kRank - 1, size), cos.shape), sin.shape).with(kRank - 1, all);
    const Tensor* const gamma = context.find_input(how.gamma);
    if (gamma && (gamma->shape != Shape{size} || size != all))
      fail(Code::invalid_input, "the norm of heads of ", size, " multiplies by ", gamma->shape.str());
    if (shape.rank() != kRank) fail(Code::invalid_input, "heads ", x.shape.str(), by(), ", which have more dimensions");
    StridedView::Numbers dims;
    for (const int64_t axis : how.order) dims.push_back(shape[int(axis)]);
    Tensor y = context.output(i, Shape(dims));
    void* const wanted = y.data;
    const auto is_read = [&](int input) { return overlap(context.input(input), y); };
    if (y.count() > 0 && (is_read(1) || is_read(2) || std::ranges::any_of(rotated_, is_read, &Rotated::x)))
      y.data = context.scratch(y.bytes());
    return {x, gamma ? AnyFloats{gamma->data, gamma->type} : AnyFloats{}, y, wanted, &how};
  }

  template <class T, int kSides>
  void launch(Context& context, const std::vector<Made>& made, const Heads& cos, const Heads& sin) const {
    constexpr int kPack = device::pack_size<T>(), kThreads = 128;
    const int64_t size = cos.shape.back(), all = made[0].x.shape.back(), rest = all - size;
    const bool in_packs = size / 2 % kPack == 0 && rest % kPack == 0 && cos.in_packs<T>() && sin.in_packs<T>() &&
                          std::ranges::all_of(made, [&](const Made& one) {
                            return one.x.template in_packs<T>() && FloatsOr<T>::has_packs(one.gamma) &&
                                   device::is_pack_aligned<kPack>(one.y.template as<T>()) &&
                                   one.y.count() / all < int64_t(1) << 31;
                          });
    const auto with = [&]<int kOwn, int kLanes, int kKeep> {
      using Kernel = RotateViewed<T, kOwn, kLanes, kKeep, kSides>;
      using Values = typename Kernel::Values;
      using Index = typename Kernel::Index;
      Kernel kernel{{},
                    0,
                    Values{cos.data},
                    Values{sin.data},
                    int(size / 2),
                    int(size / 2 / kOwn),
                    int(rest / kOwn),
                    interleaved_,
                    1.f / float(size)};
      int64_t blocks = 0;
      for (size_t i = 0; i < kSides; ++i) {
        const auto& [x, gamma, y, wanted, how] = made[i];
        const int64_t heads = y.count() / all, teams = kThreads / kLanes;
        kernel.sides[i] = {Values{x.data},
                           Values{gamma},
                           y.template as<T>(),
                           x.template in_order<Index>(how->order),
                           cos.template in_order<Index>(how->order),
                           sin.template in_order<Index>(how->order),
                           device::divider_of<Index>(y.shape[2], heads),
                           device::divider_of<Index>(y.shape[1], heads),
                           heads,
                           how->epsilon};
        blocks += (heads + teams - 1) / teams;
        if (i == 0) kernel.blocks = blocks;
      }
      device::block_kernel<NoShared>(context.stream(), {blocks, kThreads}, kernel);
    };
    if (!in_packs)
      with.template operator()<1, 32, 4>();
    else if (size / 2 <= 8 * kPack)
      with.template operator()<kPack, 8, 1>();
    else
      with.template operator()<kPack, 32, 1>();
  }

  std::vector<Rotated> rotated_;  // one or two
  const bool interleaved_;
};

}  // namespace

Attributes attributes_of(const ViewedRotation& how) {
  Attributes attributes{{"x", text_of(how.x)}, {"y", how.y_order}};
  if (how.epsilon) attributes["epsilon"] = *how.epsilon;
  if (how.interleaved) attributes[kInterleaved] = int64_t(1);
  return attributes;
}

std::unique_ptr<Op> make_viewed_rotation(const NodeInfo& node) { return std::make_unique<Rotation>(node); }

}  // namespace encore::ops
