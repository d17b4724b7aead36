// ArgMax and ArgMin. Of equal values the first counts, or the last if so asked; NaN counts as more extreme than any
// number.
#include <limits>
#include <type_traits>

#include "ops/dispatch.h"
#include "ops/reduce/extreme_rows.h"
#include "ops/reduce/reductions.h"

namespace encore::ops {
namespace {

using device::Compute;

template <class C>
struct Found {
  C value;        // the larger, the more extreme
  int64_t index;  // -1: nothing yet
};

// All of it without branches, which the threads of a warp would take in turns.
template <class T>
struct Arg {
  using C = Compute<T>;
  static constexpr int kBatch = 1;
  static constexpr Runs kRuns = Runs::huge;
  using In = T;
  using Out = int64_t;
  using Acc = Found<C>;
  bool max, last;

  DEVICE_FN Acc zero() const { return {C(0), -1}; }
  DEVICE_FN void take(Acc& acc, T x, int64_t index) const {
    const C value = extremeness(x);  // a thread sees indices in ascending order
    const bool taken = (acc.index < 0) | beats(value, acc.value) | (last & !beats(acc.value, value));
    acc.value = taken ? value : acc.value;
    acc.index = taken ? index : acc.index;
  }
  DEVICE_FN Acc merge(Acc a, Acc b) const {
    const bool better = beats(b.value, a.value), worse = beats(a.value, b.value), later = b.index > a.index;
    const bool takes = (a.index < 0) | ((b.index >= 0) & (better | (!worse & (later == last))));
    return {takes ? b.value : a.value, takes ? b.index : a.index};
  }
  DEVICE_FN Out finish(Acc acc) const { return acc.index; }

 private:
  DEVICE_FN C extremeness(T x) const {
    if constexpr (std::is_floating_point_v<C>)
      return max ? C(x) : -C(x);
    else
      return max ? x : T(~x);
  }
  DEVICE_FN static bool beats(C a, C b) {
    if constexpr (std::is_floating_point_v<C>)
      return (a > b) | ((a != a) & (b == b));
    else
      return a > b;
  }
};

// What ExtremeRows takes: places of 32 bits, so coded that the greatest one is wanted.
template <class T>
struct ArgOfRows {
  using Rank = device::OrderOf<T>;
  static constexpr int kBatch = 1;
  static constexpr bool kPlaces = true;
  using In = T;
  using Out = int64_t;
  using Acc = device::Ranked<Rank>;
  bool max, last;

  DEVICE_FN Acc zero() const { return {std::numeric_limits<Rank>::min(), std::numeric_limits<int32_t>::min()}; }
  DEVICE_FN Acc of(T most, int32_t place) const { return {device::order_of(most), coded(place)}; }
  DEVICE_FN Acc merge(const Acc& a, const Acc& b) const { return device::HigherRank{}(a, b); }
  DEVICE_FN Out finish(const Acc& acc) const { return decoded(acc.place); }
  DEVICE_FN int32_t coded(int32_t place) const { return last ? place : ~place; }
  DEVICE_FN int32_t decoded(int32_t code) const { return last ? code : ~code; }
};

template <class T>
void find_extreme(Context& context, const ReducePlan& plan, const T* x, int64_t* y, bool max, bool last) {
  if (is_rows(plan) && plan.run < kIntCap)
    reduce_rows(context, plan, x, y, ArgOfRows<T>{max, last});
  else
    reduce(context, plan, x, y, Arg<T>{max, last});
}

using List = TypeList<float, Half, BFloat16, double, int8_t, uint8_t, int32_t, int64_t>;

template <bool kMax>
class ArgExtreme : public Op {
 public:
  explicit ArgExtreme(const NodeInfo& node)
      : axis_(node.get_int("axis", 0)),
        keep_dims_(node.get_int("keepdims", 1) == 1),
        last_(node.get_int("select_last_index", 0) != 0) {}

  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    AxisSet reduced(size_t(x.shape.rank()));
    // A scalar has an axis too, for the CPU.
    const int axis = x.shape.rank() ? checked_axis(axis_, x.shape.rank()) : 0;
    if (x.shape.rank()) reduced[size_t(axis)] = true;
    const ReducePlan plan = plan_reduction(x.shape, reduced);
    require(x.count() != 0 || plan.outputs() == 0, "there is nothing to choose from along axis ", axis_, " of ",
            x.shape.str());
    const Tensor y = context.output(0, reduced_shape(x.shape, reduced, keep_dims_));
    dispatch(List{}, x.type,
             [&]<class T> { find_extreme(context, plan, x.as<const T>(), y.as<int64_t>(), kMax, last_); });
  }

 private:
  int64_t axis_;
  bool keep_dims_, last_;
};

}  // namespace

void first_greatest(Context& context, const Tensor& x, const AxisSet& reduced, int64_t* indices) {
  const ReducePlan plan = plan_reduction(x.shape, reduced);
  dispatch(FloatList{}, x.type, [&]<class T> { find_extreme(context, plan, x.as<const T>(), indices, true, false); });
}

std::vector<OpRow> arg_rows() {
  const Types types = kFloats | Types{Type::i8, Type::u8, Type::i32, Type::i64};
  return {
      {.name = "ArgMax", .since = 1, .types = {in(0, types)}, .make = make<ArgExtreme<true>>},
      {.name = "ArgMin", .since = 1, .types = {in(0, types)}, .make = make<ArgExtreme<false>>},
  };
}

}  // namespace encore::ops
