// ReduceProd and ReduceLogSumExp.
#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/dispatch.h"
#include "ops/reduce/reduce.h"

namespace encore::ops {
namespace {

using device::Compute;

template <class T>
struct Product {
  static constexpr int kBatch = 4;
  using In = T;
  using Out = T;
  // Unsigned, since products that overflow wrap around.
  using Acc = std::conditional_t<std::is_integral_v<T>, uint64_t, Compute<T>>;
  DEVICE_FN Acc zero() const { return Acc(1); }
  DEVICE_FN void take(Acc& acc, T x, int64_t) const { acc *= Acc(x); }
  DEVICE_FN Acc merge(Acc a, Acc b) const { return a * b; }
  DEVICE_FN Out finish(Acc acc) const { return T(acc); }
};

// The largest value and the sum of exp(x - largest).
template <class C>
struct Powers {
  C top, sum;
};
template <class T>
struct LogSumExp {
  using C = Compute<T>;
  static constexpr int kBatch = 1;
  using In = T;
  using Out = T;
  using Acc = Powers<C>;
  DEVICE_FN Acc zero() const { return {-std::numeric_limits<C>::infinity(), C(0)}; }
  DEVICE_FN void take(Acc& acc, T x, int64_t) const { acc = merge(acc, {C(x), C(1)}); }
  DEVICE_FN Acc merge(Acc a, Acc b) const {
    const bool swap = b.top > a.top;
    const Acc above = swap ? b : a, below = swap ? a : b;
    // Infinities that are equal differ by nothing. NaN stays.
    const C shrink = below.top == above.top ? C(1) : std::exp(below.top - above.top);
    return {above.top, above.sum + below.sum * shrink};
  }
  DEVICE_FN Out finish(Acc acc) const { return T(acc.top + std::log(acc.sum)); }
};

template <template <class> class F>
struct Plain {
  template <class T>
  static F<T> functor(int64_t) {
    return {};
  }
};
using List = TypeList<float, Half, BFloat16, double, int32_t, int64_t>;

}  // namespace

std::vector<OpRow> product_rows() {
  return {
      reduce_row<Reduce<Plain<Product>, List>>("ReduceProd", kFloats | Types{Type::i32, Type::i64}),
      reduce_row<Reduce<Plain<LogSumExp>, FloatList>>("ReduceLogSumExp", kFloats),
  };
}

}  // namespace encore::ops
