// Reductions for ops which need one, by the kernels of the Reduce operators.
#pragma once
#include "ops/reduce/plan.h"

namespace encore::ops {

// y has the dimensions of x that are not reduced.
void reduce_mean(Context& context, const Tensor& x, const AxisSet& reduced, const Tensor& y);
void reduce_max(Context& context, const Tensor& x, const AxisSet& reduced, const Tensor& y);
void reduce_sum(Context& context, const Tensor& x, const AxisSet& reduced, const Tensor& y);
// Where the greatest of floating-point values is, the first of them, as ArgMax has it.
void first_greatest(Context& context, const Tensor& x, const AxisSet& reduced, int64_t* indices);

}  // namespace encore::ops
