#include "ops/reduce/plan.h"

#include <algorithm>

#include "ops/host_vector.h"
#include "ops/shape/movement.h"

namespace encore::ops {
namespace {

struct Dim {
  int64_t size;
  bool reduced;
};
std::vector<Dim> joined(const Shape& shape, const AxisSet& reduced) {
  std::vector<Dim> dims;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == 1) continue;
    if (!dims.empty() && dims.back().reduced == reduced[size_t(i)])
      dims.back().size = checked_product(dims.back().size, shape[i]);
    else
      dims.push_back({shape[i], reduced[size_t(i)]});
  }
  return dims;
}

}  // namespace

void gather_axes(Context& context, Tensor& x, AxisSet& reduced) {
  if (joined(x.shape, reduced).size() <= 2 * Dims::kMost) return;
  std::vector<int> from;
  std::vector<int64_t> dims;
  AxisSet sorted;
  for (const bool side : {false, true})
    for (int i = 0; i < x.shape.rank(); ++i) {
      if (reduced[size_t(i)] != side) continue;
      from.push_back(i);
      dims.push_back(x.shape[i]);
      sorted.push_back(side);
    }
  const Tensor copy{x.type, x.where, Shape(dims), context.scratch(x.bytes())};
  transpose(context.stream(), x, from, copy);
  x = copy;
  reduced = sorted;
}

ReducePlan plan_reduction(const Shape& shape, const AxisSet& reduced) {
  std::vector<Dim> dims = joined(shape, reduced);
  ReducePlan plan;
  if (dims.empty()) return plan;
  plan.run = dims.back().size;
  plan.reduces_run = dims.back().reduced;
  dims.pop_back();
  int64_t stride = plan.run;
  for (size_t d = dims.size(); d-- > 0; stride *= shape.count() ? dims[d].size : 0) {
    Dims& side = dims[d].reduced ? plan.reduced : plan.kept;
    // Innermost first for now.
    side.sizes[side.rank] = device::Divider(dims[d].size, 0);
    side.strides[side.rank++] = stride;
    side.count = checked_product(side.count, dims[d].size);
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
  if (const Tensor* given = context.find_input(1))
    axes = host_vector(*given, "axes");
  else if (axes_)
    axes = *axes_;
  AxisSet reduced(size_t(rank), axes.empty() && !nothing_if_empty_);
  for (int64_t axis : axes) reduced[size_t(checked_axis(axis, rank, "axes"))] = true;
  return reduced;
}

}  // namespace encore::ops
