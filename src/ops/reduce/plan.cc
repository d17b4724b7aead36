#include "ops/reduce/plan.h"

#include <algorithm>

namespace encore::ops {

ReducePlan plan_reduction(const Shape& shape, const AxisSet& reduced) {
  struct Dim {
    int64_t size;
    bool reduced;
  };
  std::vector<Dim> dims;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == 1) continue;
    if (!dims.empty() && dims.back().reduced == reduced[size_t(i)])
      dims.back().size *= shape[i];
    else
      dims.push_back({shape[i], reduced[size_t(i)]});
  }
  ReducePlan plan;
  if (dims.empty()) return plan;
  plan.run = dims.back().size;
  plan.reduces_run = dims.back().reduced;
  dims.pop_back();
  int64_t stride = plan.run;
  for (size_t d = dims.size(); d-- > 0; stride *= dims[d].size) {
    Dims& side = dims[d].reduced ? plan.reduced : plan.kept;
    // Innermost first for now.
    side.sizes[side.rank] = device::Divider(dims[d].size, 0);
    side.strides[side.rank++] = stride;
    side.count *= dims[d].size;
  }
  for (Dims* side : {&plan.kept, &plan.reduced}) {
    std::reverse(side->sizes, side->sizes + side->rank);
    std::reverse(side->strides, side->strides + side->rank);
    for (int d = 0; d < side->rank; ++d) side->sizes[d] = device::Divider(side->sizes[d].divisor(), side->count);
  }
  return plan;
}

Shape reduced_shape(const Shape& shape, const AxisSet& reduced, bool keep_dims) {
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) {
    if (!reduced[size_t(i)])
      dims.push_back(shape[i]);
    else if (keep_dims)
      dims.push_back(1);
  }
  return Shape(dims);
}

ReduceAxes::ReduceAxes(const NodeInfo& node)
    : axes_(node.find_ints("axes")),
      keep_dims_(node.get_int("keepdims", 1) == 1),
      nothing_if_empty_(node.get_int("noop_with_empty_axes", 0) == 1) {}

AxisSet ReduceAxes::of(Context& context) const {
  const int rank = context.input(0).shape.rank();
  std::vector<int64_t> axes;
  if (const Tensor* given = context.input_count() > 1 ? context.find_input(1) : nullptr)
    axes = host_ints(*given, "axes");
  else if (axes_)
    axes = *axes_;
  AxisSet reduced{};
  if (axes.empty()) {
    reduced.fill(!nothing_if_empty_);
  } else {
    for (int64_t axis : axes) reduced[size_t(checked_axis(axis, rank, "axes"))] = true;
  }
  return reduced;
}

}  // namespace encore::ops
