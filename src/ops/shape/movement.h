// Movement of whole tensors, for ops and for callers who have no node for it.
#pragma once
#include <span>

#include "device/stream.h"
#include "ops/tensor.h"

namespace encore::ops {

// Dimension i of `out` is dimension from[i] of `in`.
void transpose(device::StreamRef stream, const Tensor& in, std::span<const int> from, const Tensor& out);

// The elements of `in`, which broadcasts to `shape`, repeated accordingly.
void expand(device::StreamRef stream, const Tensor& in, const Shape& shape, void* out);

// What tensors are side by side along an axis. Error{invalid_input} says which does not fit.
Shape joined_shape(std::span<const Tensor> parts, int axis);
// Where a part without data belongs nothing changes.
void concatenate(device::StreamRef stream, std::span<const Tensor> parts, int axis, const Tensor& joined);
// A tensor that may be cut out of a wider one, along the axis in question.
struct Cut {
  Tensor tensor;
  int64_t pitch;  // from one row's first element to the next one's, where rows are all from the axis on

  Cut(const Tensor& whole, int axis);
  Cut(const Tensor& wider, int axis, int64_t begin, int64_t end);  // Error{invalid_input}: it is not as wide
};
Shape joined_shape(std::span<const Cut> parts, int axis);
void concatenate(device::StreamRef stream, std::span<const Cut> parts, int axis, const Tensor& joined);
// The parts, all of `part_bytes` bytes, one after the other.
void concatenate(device::StreamRef stream, std::span<const void* const> parts, size_t part_bytes, void* out);

}  // namespace encore::ops
