// Reductions, and operators made of them. Every value is read once. Results do not depend on the order in which blocks
// run.
#pragma once
#include "ops/reduce/columns.h"
#include "ops/reduce/merge_parts.h"
#include "ops/reduce/runs.h"
#include "ops/registry.h"

namespace encore::ops {

// Reduces x into y, which has plan.outputs() elements.
template <class F>
void reduce(Context& context, const ReducePlan& plan, const typename F::In* x, typename F::Out* y, const F& f) {
  static_assert(sizeof(typename F::Acc) <= 16);
  Results<F> results{y, nullptr, plan.outputs(), 1};
  if (results.outputs == 0) return;
  results = plan.reduces_run || plan.reduced_count() == 0 ? reduce_runs<false>(context, plan, x, results, f)
                                                          : reduce_columns(context, plan, x, results, f, true);
  merge_parts(context, results, f);
}

// Reduces `count` neighbours into one output, with fewer kernels to compile.
template <class F>
void reduce_all(Context& context, int64_t count, const typename F::In* x, typename F::Out* y, const F& f) {
  static_assert(sizeof(typename F::Acc) <= 16);
  ReducePlan plan;
  plan.run = count;
  plan.reduces_run = true;
  merge_parts(context, reduce_runs<true>(context, plan, x, Results<F>{y, nullptr, 1, 1}, f), f);
}

// Reduces x, of a type of the list, into y. Make is called with the count of values that are reduced into one:
// Make::template functor<T>(count).
template <class Make, class List>
void reduce_as(Context& context, const Tensor& x, const AxisSet& reduced, const Tensor& y) {
  const ReducePlan plan = plan_reduction(x.shape, reduced);
  dispatch(List{}, x.type, [&]<class T> {
    reduce(context, plan, x.as<const T>(), y.as<T>(), Make::template functor<T>(plan.reduced_count()));
  });
}

// A reduction of input 0 into output 0.
template <class Make, class List>
class Reduce : public Op {
 public:
  explicit Reduce(const NodeInfo& node) : axes_(node) {}
  void run(Context& context) const override {
    Tensor x = context.input(0);
    AxisSet reduced = axes_.of(context);
    const Tensor y = context.output(0, reduced_shape(x.shape, reduced, axes_.keep_dims()));
    gather_axes(context, x, reduced);
    reduce_as<Make, List>(context, x, reduced, y);
  }

 private:
  ReduceAxes axes_;
};

// Axes are an attribute, or since opset 13 or 18 an input in host memory.
template <class Op>
OpRow reduce_row(const char* name, Types types) {
  return {.name = name, .since = 1, .types = {in(0, types)}, .make = make<Op>, .host_inputs = {1}};
}

}  // namespace encore::ops
