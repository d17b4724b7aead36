#include "ops/index/indices.h"

#include <span>
#include <vector>

#include "device/error.h"

namespace encore::ops {
namespace {

struct Dim {
  int64_t size, stride;
};
using Launch = std::function<void(const PickedElements&, int64_t, int64_t, int64_t)>;

void launch_all(PickedElements picked, std::span<const Dim> dims, int64_t data_from, int64_t from, int64_t count,
                const Launch& launch) {
  if (dims.size() > PickedElements::kMostDims) {
    const Dim outer = dims.back();
    count /= outer.size;
    for (int64_t i = 0; i < outer.size; ++i) {
      launch_all(picked, dims.first(dims.size() - 1), data_from + i * outer.stride, from + i * count, count, launch);
      picked.indices = picked.indices.from(count);
    }
    return;
  }
  for (const Dim& dim : dims) {
    picked.sizes[picked.rank] = device::Divider(dim.size, count);
    picked.strides[picked.rank++] = dim.stride;
  }
  launch(picked, data_from, from, count);
}

}  // namespace

void widen(int64_t& count, size_t& bytes, std::initializer_list<const void*> addresses) {
  uintptr_t all = 0;
  for (const void* address : addresses) all |= reinterpret_cast<uintptr_t>(address);
  while (bytes < 16 && count > 0 && count % 2 == 0 && all % (2 * bytes) == 0) {
    count /= 2;
    bytes *= 2;
  }
}

void for_picked_elements(const Shape& data, const Tensor& indices, int axis, device::FaultRef fault,
                         const Launch& launch) {
  const int rank = data.rank();
  require(indices.shape.rank() == rank, "indices of shape ", indices.shape.str(), " for data of shape ", data.str());
  for (int d = 0; d < rank; ++d)
    require(d == axis || indices.shape[d] <= data[d], "indices of shape ", indices.shape.str(),
            " exceed data of shape ", data.str());
  if (indices.count() == 0) return;
  require(data[axis] > 0, "no index is within axis ", axis, " of ", data.str());
  const auto strides = strides_of(data);
  std::vector<Dim> dims;  // innermost first, joined where data and indices are walked alike
  for (int d = rank - 1; d >= 0; --d) {
    const Dim next{indices.shape[d], d == axis ? 0 : strides[size_t(d)]};
    if (next.size == 1) continue;
    if (!dims.empty() && next.stride == dims.back().stride * dims.back().size)
      dims.back().size *= next.size;
    else
      dims.push_back(next);
  }
  const PickedElements picked{indices_of(indices), data[axis], strides[size_t(axis)], 0, {}, {}, fault};
  launch_all(picked, dims, 0, 0, indices.count(), launch);
}

PickedSlices picked_slices(const Shape& data, const Tensor& indices, int batch, int64_t unit, device::FaultRef fault) {
  PickedSlices picked{indices.as<const int64_t>(), int(indices.shape.back()), {}, {}, fault};
  const auto strides = strides_of(data);
  for (int d = 0; d < picked.depth; ++d) {
    picked.dims[d] = data[batch + d];
    picked.strides[d] = strides[size_t(batch + d)] / unit;
  }
  return picked;
}

void check_depth(int64_t depth) {
  if (depth > PickedSlices::kMostDepth)
    fail(Code::not_supported, "indices of depth ", depth, "; up to ", PickedSlices::kMostDepth, " are supported");
}

}  // namespace encore::ops
