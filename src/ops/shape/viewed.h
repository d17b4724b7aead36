// Tensors as Reshape, Transpose and their kin would make them, one after the other: moved only where no view is that.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/op.h"
#include "ops/shape/strided_view.h"

namespace encore::ops {

struct ViewStep {
  enum Kind { transpose, reshape, squeeze, unsqueeze, select, slice, repeat, roll };
  Kind kind;
  // The order, the dimensions, the axes, an axis and the index, an axis, where it begins, how many there are, and how
  // many it has, an axis of one and how often that is there, or one axis after the other, counted from the end, each
  // with from where on it is read.
  std::vector<int64_t> numbers;
};

// "reshape 0,0,12,64; transpose 0,2,1,3"
std::string text_of(const std::vector<ViewStep>& steps);
std::vector<ViewStep> view_steps(const std::string& text);

// False, and unchanged, if elements would have to be moved, as those of a roll.
bool take(const ViewStep& step, StridedView& view);
// How often elements are moved until they are one behind the other as the steps make them.
int copies(StridedView view, std::span<const ViewStep> steps);

struct ViewedTensor {
  const void* data;
  StridedView view;
  const void* start(size_t bytes) const { return static_cast<const char*>(data) + size_t(view.offset()) * bytes; }
};

// What has to be moved on the way is in scratch. There is no roll among the steps.
ViewedTensor viewed(Context& context, const Tensor& tensor, const std::vector<ViewStep>& steps);
// The same elements, which there are, one behind the other.
void make_dense(Context& context, size_t bytes, ViewedTensor& seen);

// A tensor as these steps make it: one copy, or the tensor itself where they leave all elements in their places.
// They are the attribute "steps".
std::unique_ptr<Op> make_viewed(const NodeInfo& node);

}  // namespace encore::ops
