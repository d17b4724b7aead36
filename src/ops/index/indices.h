// Indices in device memory, and where the elements lie that tensors of indices point to.
#pragma once
#include <cstdint>
#include <functional>

#include "device/divide.h"
#include "device/fault.h"
#include "ops/tensor.h"

namespace encore::ops {

struct Indices {
  const void* data;
  bool wide;  // int64, else int32
  DEVICE_FN int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
  Indices from(int64_t i) const { return {static_cast<const char*>(data) + i * (wide ? 8 : 4), wide}; }
};
inline Indices indices_of(const Tensor& tensor) { return {tensor.data, tensor.type == Type::i64}; }

// Takes elements of `count` neighbours as wider ones while counts and addresses allow.
void widen(int64_t& count, size_t& bytes, std::initializer_list<const void*> addresses);

// [i0, .., indices[i0, .., i_axis, ..], ..]: of GatherElements and ScatterElements.
struct PickedElements {
  static constexpr int kMostDims = 12;
  Indices indices;
  int64_t dim, stride;  // of the axis
  int rank;
  device::Divider sizes[kMostDims];  // of the indices, innermost first
  int64_t strides[kMostDims];
  device::FaultRef fault;

  // Where in the data the element i of the indices points to; -1 if it points nowhere, which is reported.
  DEVICE_FN int64_t operator()(int64_t i) const {
    int64_t at = indices[i];
    if (at < -dim || at >= dim) {
      fault.report(device::FaultKind::index_out_of_range, at, dim);
      return -1;
    }
    at = (at < 0 ? at + dim : at) * stride;
    for (int d = 0; d < rank; ++d) {
      int64_t rest;
      i = sizes[d](i, rest);
      at += rest * strides[d];
    }
    return at;
  }
};
// Calls launch(elements, first of the data, first of the indices, count): once, or for more dimensions than a kernel
// walks once for each index of the outer ones. Throws Error{invalid_input} if the shapes do not fit.
void for_picked_elements(
    const Shape& data, const Tensor& indices, int axis, device::FaultRef fault,
    const std::function<void(const PickedElements&, int64_t data_from, int64_t from, int64_t count)>& launch);

// indices[slice, :] says where in the data a slice lies: of GatherND and ScatterND.
struct PickedSlices {
  static constexpr int kMostDepth = 16;
  const int64_t* indices;
  int depth;  // indices of one slice
  int64_t dims[kMostDepth], strides[kMostDepth];
  device::FaultRef fault;

  DEVICE_FN int64_t operator()(int64_t slice) const {
    int64_t at = 0;
    for (int d = 0; d < depth; ++d) {
      const int64_t index = indices[slice * depth + d];
      if (index < -dims[d] || index >= dims[d]) {
        fault.report(device::FaultKind::index_out_of_range, index, dims[d]);
        return -1;
      }
      at += (index < 0 ? index + dims[d] : index) * strides[d];
    }
    return at;
  }
};
// Into the dimensions of the data from `batch` on; strides are in units of `unit` elements.
PickedSlices picked_slices(const Shape& data, const Tensor& indices, int batch, int64_t unit, device::FaultRef fault);
void check_depth(int64_t depth);  // Error{not_supported} beyond kMostDepth

}  // namespace encore::ops
