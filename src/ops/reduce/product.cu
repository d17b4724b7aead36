// ReduceProd and ReduceLogSumExp.
#include <type_traits>

#include "ops/dispatch.h"
#include "ops/reduce/log_sum_exp.h"
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
