// The length of vectors in one of the p-norms: the p-th root of the sum of magnitudes to the power of p.
#pragma once
#include <cmath>

#include "ops/reduce/plan.h"

namespace encore::ops {

// kCalls: powers are calls, where code has many of them, which nvcc would take long for.
template <class C, bool kCalls = false>
class Norm {
 public:
  explicit Norm(float p) : p_(C(p)) {}
  DEVICE_FN C term(C x) const {
    if (p_ == C(2)) return x * x;
    return p_ == C(1) ? std::abs(x) : power(std::abs(x), p_);
  }
  DEVICE_FN C length(C sum) const {
    if (p_ == C(2)) return std::sqrt(sum);
    return p_ == C(1) ? sum : power(sum, C(1) / p_);
  }

 private:
  DEVICE_FN static C power(C x, C p) {
    if constexpr (kCalls) return called_power(x, p);
    return std::pow(x, p);
  }
  CALLED_FN static C called_power(C x, C p) { return std::pow(x, p); }

  C p_;
};
// The same where p is 1 or 2.
template <class C>
class ShortNorm {
 public:
  explicit ShortNorm(float p) : squares_(p == 2) {}
  DEVICE_FN C term(C x) const { return squares_ ? x * x : std::abs(x); }
  DEVICE_FN C length(C sum) const { return squares_ ? std::sqrt(sum) : sum; }

 private:
  bool squares_;
};

// Over the reduced dimensions of x; y is of x's type or, if p is 1 or 2, of the one that it is computed in.
void reduce_length(Context& context, const Tensor& x, const AxisSet& reduced, float p, const Tensor& y);

// The attribute p, which version 1 of the pools has as a float.
inline float power_of(const NodeInfo& node) {
  const float p = node.since_version() == 1 ? node.get_float("p", 2) : float(node.get_int("p", 2));
  require(p > 0 && std::isfinite(p), "p is ", p, "; it must be positive");
  return p;
}

}  // namespace encore::ops
