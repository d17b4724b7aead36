// The logarithm of a sum of powers, as a reduction that reads values once and does not overflow.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "device/half.h"

namespace encore::ops {

// The largest value and the sum of exp(x - largest).
template <class C>
struct Powers {
  C top, sum;
};
template <class T>
struct LogSumExp {
  using C = device::Compute<T>;
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

}  // namespace encore::ops
