// The length of vectors in one of the p-norms: the p-th root of the sum of magnitudes to the power of p.
#pragma once
#include <cmath>

#include "ops/reduce/plan.h"

namespace encore::ops {

template <class C>
class Norm {
 public:
  explicit Norm(float p) : p_(C(p)) {}
  DEVICE_FN C term(C x) const {
    if (p_ == C(2)) return x * x;
    return p_ == C(1) ? std::abs(x) : std::pow(std::abs(x), p_);
  }
  DEVICE_FN C length(C sum) const {
    if (p_ == C(2)) return std::sqrt(sum);
    return p_ == C(1) ? sum : std::pow(sum, C(1) / p_);
  }

 private:
  C p_;
};

// Over the reduced dimensions of x; y is of x's type, or of the one that it is computed in.
void reduce_length(Context& context, const Tensor& x, const AxisSet& reduced, float p, const Tensor& y);

// The attribute p, which version 1 of the pools has as a float.
inline float power_of(const NodeInfo& node) {
  const float p = node.since_version() == 1 ? node.get_float("p", 2) : float(node.get_int("p", 2));
  require(p > 0 && std::isfinite(p), "p is ", p, "; it must be positive");
  return p;
}

}  // namespace encore::ops
