// Reductions that add: ReduceSum, ReduceMean, ReduceLogSum, ReduceL1, ReduceSumSquare, ReduceL2.
#include <cmath>
#include <type_traits>

#include "ops/dispatch.h"
#include "ops/elementwise/truncate.h"
#include "ops/reduce/reduce.h"
#include "ops/reduce/reductions.h"

namespace encore::ops {
namespace {

using device::Compute;

enum class Term { value, magnitude, square };
enum class Ending { none, mean, root, log };

// One kernel for all terms: a few instructions more, which reading from memory hides, if values are not too many. So
// sums of short types have one of their own: kPlain, of the values themselves.
template <class T, bool kPlain>
struct Sum {
  static constexpr int kBatch = kPlain ? 8 : 4;
  using In = T;
  using Out = T;
  // Unsigned, since sums that overflow wrap around.
  using Acc = std::conditional_t<std::is_integral_v<T>, uint64_t, Compute<T>>;
  Term term;
  Ending ending;
  int64_t count;

  DEVICE_FN Acc zero() const { return Acc(0); }
  DEVICE_FN void take(Acc& acc, T x, int64_t) const {
    const Acc value = Acc(Compute<T>(x));
    if (kPlain || term == Term::value)
      acc += value;
    else if (term == Term::square)
      acc += value * value;
    else
      acc += Compute<T>(x) < 0 ? Acc(0) - value : value;
  }
  DEVICE_FN Acc merge(Acc a, Acc b) const { return a + b; }
  DEVICE_FN Out finish(Acc acc) const {
    using Sum = std::conditional_t<std::is_integral_v<T>, int64_t, Acc>;
    using Real = std::conditional_t<std::is_integral_v<T>, double, Acc>;
    const auto sum = Sum(acc);
    switch (ending) {
      case Ending::mean: return T(count ? sum / Sum(count) : Sum(0));  // of nothing: 0, as on the CPU
      case Ending::root:
        if constexpr (std::is_integral_v<T>)
          return truncated<T>(std::sqrt(Real(sum)));
        else
          return T(std::sqrt(sum));
      case Ending::log: return T(std::log(Real(sum)));
      default: return T(sum);
    }
  }
};

template <Term kTerm, Ending kEnding>
struct MakeSum {
  template <class T>
  static auto functor(int64_t count) {
    constexpr bool kPlain = kTerm == Term::value && std::is_same_v<Compute<T>, float>;
    return Sum<T, kPlain>{kTerm, kEnding, count};
  }
};

using List = TypeList<float, Half, BFloat16, double, int32_t, int64_t>;
constexpr Types kTypes = kFloats | Types{Type::i32, Type::i64};

}  // namespace

void reduce_mean(Context& context, const Tensor& x, const AxisSet& reduced, const Tensor& y) {
  reduce_as<MakeSum<Term::value, Ending::mean>, List>(context, x, reduced, y);
}

void reduce_sum(Context& context, const Tensor& x, const AxisSet& reduced, const Tensor& y) {
  reduce_as<MakeSum<Term::value, Ending::none>, List>(context, x, reduced, y);
}

std::vector<OpRow> sum_rows() {
  return {
      reduce_row<Reduce<MakeSum<Term::value, Ending::none>, List>>("ReduceSum", kTypes),
      reduce_row<Reduce<MakeSum<Term::value, Ending::mean>, List>>("ReduceMean", kTypes),
      reduce_row<Reduce<MakeSum<Term::value, Ending::log>, FloatList>>("ReduceLogSum", kFloats),
      reduce_row<Reduce<MakeSum<Term::magnitude, Ending::none>, List>>("ReduceL1", kTypes),
      reduce_row<Reduce<MakeSum<Term::square, Ending::none>, List>>("ReduceSumSquare", kTypes),
      reduce_row<Reduce<MakeSum<Term::square, Ending::root>, List>>("ReduceL2", kTypes),
  };
}

}  // namespace encore::ops
