// Softmax for ops which need it on the way.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "ops/op.h"

namespace encore::ops {

// The rows that Softmax, LogSoftmax and Hardmax take: [outer, width, inner], along the middle.
struct AxisRows {
  int64_t outer, width, inner;
};
class SoftmaxAxis {
 public:
  explicit SoftmaxAxis(const NodeInfo& node)
      : flattens_(node.since_version() < 13), axis_(node.get_int("axis", flattens_ ? 1 : -1)) {}
  AxisRows rows_of(const Shape& shape) const {
    const int rank = shape.rank();
    // Before opset 13 all dimensions from the axis on were one row, and a scalar or vector had the axis 1 by default.
    const bool after_last = flattens_ && axis_ == rank;
    const int axis = after_last || rank == 0 ? rank : checked_axis(axis_, rank);
    const int end = flattens_ || rank == 0 ? rank : axis + 1;
    if (shape.count() == 0) return {};
    return {shape.count(0, axis), shape.count(axis, end), shape.count(end, rank)};
  }

 private:
  bool flattens_;
  int64_t axis_;
};

// Softmax, or LogSoftmax, of floating-point values where rows.inner is not 1; there are some. y may be x.
void softmax_middle(StreamRef stream, const Tensor& x, const AxisRows& rows, bool log, const Tensor& y);

// Of floating-point values along one axis. y has the shape of x, and may be x.
void log_softmax(StreamRef stream, const Tensor& x, int axis, const Tensor& y);

// Whether what is added to x, whose rows are all dimensions from the axis on, has such rows, and of the dimensions
// before lacks only neighbours. One of -1 is unknown, and equals none.
bool shares_rows(std::span<const int64_t> addend, std::span<const int64_t> x, int axis);

// softmax(scores + mask) along the last axis, as attention has it, whose mask shares rows so; it may be null. y may be
// the scores, of which there are some. Rows of which all is masked become `zeros`, else NaN.
void masked_softmax(StreamRef stream, const Tensor& scores, const Tensor* mask, bool zeros, const Tensor& y);
// The same as a node with the attribute kZeros.
inline constexpr const char* kZeros = "zeros";
std::unique_ptr<Op> make_masked_softmax(const NodeInfo& node);

}  // namespace encore::ops
