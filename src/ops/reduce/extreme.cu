// ReduceMax and ReduceMin. A NaN among floats is the result, as in NumPy; the CPU's answer depends on where it stands.
#include <limits>
#include <type_traits>

#include "ops/dispatch.h"
#include "ops/reduce/extreme_rows.h"
#include "ops/reduce/reductions.h"

namespace encore::ops {
namespace {

using device::Compute;

// The least number is the largest of those of the other sign.
template <class T>
struct Extreme {
  static constexpr int kBatch = 4;
  static constexpr Runs kRuns = std::is_same_v<T, bool> ? Runs::all : Runs::ragged;
  static constexpr bool kPlaces = false;
  using In = T;
  using Out = T;
  using Acc = Compute<T>;
  bool max;

  DEVICE_FN Acc zero() const {
    using Limits = std::numeric_limits<Acc>;
    if constexpr (std::is_floating_point_v<Acc>)
      return -Limits::infinity();
    else
      return max ? Limits::lowest() : Limits::max();
  }
  DEVICE_FN void take(Acc& acc, T x, int64_t) const { acc = merge(acc, turned(Acc(x))); }
  // Halves are compared two at once, each with that at its place in another pack.
  using Halves = Pack<T, device::pack_size<T>()>;
  DEVICE_FN Halves lowest_pack() const requires(device::kIsHalf<T>) {
    Halves pack;
    UNROLL for (T& at : pack.at) at = T(zero());
    return pack;
  }
  DEVICE_FN void take(Halves& most, const Halves& pack) const {
    most = device::larger_or_nan(most, device::flipped(pack, max ? 0u : 0x80008000u));
  }
  DEVICE_FN Acc of_pack(const Halves& most) const { return Acc(device::largest_or_nan(most)); }
  DEVICE_FN Acc merge(Acc a, Acc b) const {
    if constexpr (std::is_floating_point_v<Acc>)
      return device::larger_or_nan(a, b);
    else
      return (max ? b < a : a < b) ? a : b;
  }
  DEVICE_FN Out finish(Acc acc) const { return T(turned(acc)); }
  DEVICE_FN Acc of(T most, int32_t) const {
    if constexpr (std::is_floating_point_v<Acc>)
      return Acc(most);
    else
      return max ? most : T(~most);
  }

 private:
  DEVICE_FN Acc turned(Acc x) const {
    if constexpr (std::is_floating_point_v<Acc>)
      return max ? x : -x;
    else
      return x;
  }
};

// What reduce_as() takes for these. Short rows that are not made of whole packs are better read many at a time.
template <class T>
void reduce(Context& context, const ReducePlan& plan, const T* x, T* y, const Extreme<T>& extreme) {
  constexpr int64_t kShort = 512 / sizeof(T);
  if constexpr (!std::is_same_v<T, bool>)
    if (is_rows(plan) && (plan.run > kShort || plan.run % device::pack_size<T>() == 0))
      return reduce_rows(context, plan, x, y, extreme);
  ops::reduce(context, plan, x, y, extreme);
}

template <bool kMax>
struct MakeExtreme {
  template <class T>
  static Extreme<T> functor(int64_t) {
    return {kMax};
  }
};

using List = TypeList<float, Half, BFloat16, double, int8_t, uint8_t, int32_t, int64_t, bool>;
constexpr Types kTypes = kFloats | kBool | Types{Type::i8, Type::u8, Type::i32, Type::i64};

}  // namespace

void reduce_max(Context& context, const Tensor& x, const AxisSet& reduced, const Tensor& y) {
  reduce_as<MakeExtreme<true>, List>(context, x, reduced, y);
}

std::vector<OpRow> extreme_rows() {
  return {
      reduce_row<Reduce<MakeExtreme<true>, List>>("ReduceMax", kTypes),
      reduce_row<Reduce<MakeExtreme<false>, List>>("ReduceMin", kTypes),
  };
}

}  // namespace encore::ops
