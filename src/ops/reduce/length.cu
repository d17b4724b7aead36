// The length of vectors in one of the p-norms.
#include <type_traits>

#include "ops/dispatch.h"
#include "ops/reduce/length.h"
#include "ops/reduce/reduce.h"

namespace encore::ops {
namespace {

using device::Compute;

template <class T, class Result, class Norm>
struct Length {
  static constexpr int kBatch = 4;
  using In = T;
  using Out = Result;
  using Acc = Compute<T>;
  Norm norm;
  DEVICE_FN Acc zero() const { return Acc(0); }
  DEVICE_FN void take(Acc& acc, T x, int64_t) const { acc += norm.term(Acc(x)); }
  DEVICE_FN Acc merge(Acc a, Acc b) const { return a + b; }
  DEVICE_FN Out finish(Acc acc) const { return Out(norm.length(acc)); }
};

}  // namespace

void reduce_length(Context& context, const Tensor& x, const AxisSet& reduced, float p, const Tensor& y) {
  const ReducePlan plan = plan_reduction(x.shape, reduced);
  dispatch(FloatList{}, x.type, [&]<class T>() {
    using C = Compute<T>;
    if (std::is_same_v<T, C> || y.type == x.type)
      reduce(context, plan, x.as<const T>(), y.as<T>(), Length<T, T, Norm<C, true>>{Norm<C, true>(p)});
    else if constexpr (!std::is_same_v<T, C>)
      reduce(context, plan, x.as<const T>(), y.as<C>(), Length<T, C, ShortNorm<C>>{ShortNorm<C>(p)});
  });
}

}  // namespace encore::ops
