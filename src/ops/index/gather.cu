// Gather, GatherElements and GatherND. An index out of range is never followed: it reads element 0 and is reported.
#include <algorithm>

#include "device/divide.h"
#include "device/fault.h"
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::FaultRef;

struct Indices {
  const void* data;
  bool wide;  // int64, else int32
  DEVICE_FN int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
  Indices from(int64_t i) const { return {static_cast<const char*>(data) + i * (wide ? 8 : 4), wide}; }
};
Indices indices_of(const Tensor& tensor) { return {tensor.data, tensor.type == Type::i64}; }

// Takes elements of `count` neighbours as wider ones while counts and addresses allow.
void widen(int64_t& count, size_t& bytes, std::initializer_list<const void*> addresses) {
  uintptr_t all = 0;
  for (const void* address : addresses) all |= reinterpret_cast<uintptr_t>(address);
  while (bytes < 16 && count > 0 && count % 2 == 0 && all % (2 * bytes) == 0) {
    count /= 2;
    bytes *= 2;
  }
}

// out[outer, j, inner] = in[outer, indices[j], inner]
template <class T>
struct GatherRows {
  const T* in;
  T* out;
  Indices indices;
  int64_t dim, inner;
  Divider by_inner, by_indices;
  FaultRef fault;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t column, j;
    const int64_t outer = by_indices(by_inner(i, column), j);
    out[i] = in[(outer * dim + fault.checked_index(indices[j], dim)) * inner + column];
  }
};

class Gather : public Op {
 public:
  explicit Gather(const NodeInfo& node) : axis_(node.get_int("axis", 0)) {}
  void run(Context& context) const override {
    const Tensor &in = context.input(0), &indices = context.input(1);
    const int rank = in.shape.rank(), axis = checked_axis(axis_, rank);
    std::vector<int64_t> dims(in.shape.dims().begin(), in.shape.dims().begin() + axis);
    dims.insert(dims.end(), indices.shape.dims().begin(), indices.shape.dims().end());
    dims.insert(dims.end(), in.shape.dims().begin() + axis + 1, in.shape.dims().end());
    const Tensor out = context.output(0, Shape(dims));
    if (out.count() == 0) return;
    require(in.shape[axis] > 0, "nothing can be gathered along axis ", axis, " of ", in.shape.str());
    int64_t inner = in.shape.count(axis + 1, rank);
    size_t bytes = device::size_bytes(in.type);
    widen(inner, bytes, {in.data, out.data});
    const int64_t count = in.shape.count(0, axis) * indices.count() * inner;
    dispatch_size(bytes, [&]<class T>() {
      device::for_each_index(context.stream(), count,
                             GatherRows<T>{in.as<const T>(), out.as<T>(), indices_of(indices), in.shape[axis], inner,
                                           Divider(inner, count), Divider(indices.count(), count), context.fault()});
    });
  }

 private:
  int64_t axis_;
};

// out[i0, .., i_axis, ..] = in[i0, .., indices[i0, .., i_axis, ..], ..]
template <class T>
struct GatherOne {
  static constexpr int kMostDims = 12;
  const T* in;
  T* out;
  Indices indices;
  int64_t dim, stride;  // of the axis
  int rank;
  Divider sizes[kMostDims];  // of the indices, innermost first
  int64_t strides[kMostDims];
  FaultRef fault;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t from = fault.checked_index(indices[i], dim) * stride, rest = i;
    for (int d = 0; d < rank; ++d) {
      int64_t at;
      rest = sizes[d](rest, at);
      from += at * strides[d];
    }
    out[i] = in[from];
  }
};

class GatherElements : public Op {
 public:
  explicit GatherElements(const NodeInfo& node) : axis_(node.get_int("axis", 0)) {}
  void run(Context& context) const override {
    const Tensor &in = context.input(0), &indices = context.input(1);
    const int rank = in.shape.rank(), axis = checked_axis(axis_, rank);
    require(indices.shape.rank() == rank, "indices of shape ", indices.shape.str(), " for data of shape ",
            in.shape.str());
    for (int d = 0; d < rank; ++d)
      require(d == axis || indices.shape[d] <= in.shape[d], "indices of shape ", indices.shape.str(),
              " exceed data of shape ", in.shape.str());
    const Tensor out = context.output(0, indices.shape);
    if (out.count() == 0) return;
    require(in.shape[axis] > 0, "nothing can be gathered along axis ", axis, " of ", in.shape.str());
    const auto strides = strides_of(in.shape);
    std::vector<Dim> dims;  // innermost first, joined where data and indices are walked alike
    for (int d = rank - 1; d >= 0; --d) {
      const Dim next{indices.shape[d], d == axis ? 0 : strides[size_t(d)]};
      if (next.size == 1) continue;
      if (!dims.empty() && next.stride == dims.back().stride * dims.back().size)
        dims.back().size *= next.size;
      else
        dims.push_back(next);
    }
    dispatch_size(device::size_bytes(in.type), [&]<class T>() {
      GatherOne<T> gather{
          in.as<const T>(), out.as<T>(), indices_of(indices), in.shape[axis], strides[size_t(axis)], 0, {}, {},
          context.fault()};
      gather_all(context.stream(), gather, dims, out.count());
    });
  }

 private:
  struct Dim {
    int64_t size, stride;
  };
  // A launch for each index of those dimensions, the outermost, that are more than a kernel walks.
  template <class T>
  static void gather_all(StreamRef stream, GatherOne<T> gather, std::span<const Dim> dims, int64_t count) {
    if (dims.size() > GatherOne<T>::kMostDims) {
      const Dim outer = dims.back();
      count /= outer.size;
      for (int64_t i = 0; i < outer.size; ++i) {
        gather_all(stream, gather, dims.first(dims.size() - 1), count);
        gather.in += outer.stride;
        gather.out += count;
        gather.indices = gather.indices.from(count);
      }
      return;
    }
    for (const Dim& dim : dims) {
      gather.sizes[gather.rank] = Divider(dim.size, count);
      gather.strides[gather.rank++] = dim.stride;
    }
    device::for_each_index(stream, count, gather);
  }

  int64_t axis_;
};

// out[batch, j, inner] = in[batch, indices[batch, j, :], inner]
constexpr int kMostDepth = 16;
template <class T>
struct GatherSlices {
  const T* in;
  T* out;
  Indices indices;
  int depth;  // indices of one slice
  int64_t inner, batch_stride;
  Divider by_inner, by_batch;  // slices of one batch
  int64_t dims[kMostDepth], strides[kMostDepth];
  FaultRef fault;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t column, in_batch;
    const int64_t slice = by_inner(i, column);
    int64_t from = by_batch(slice, in_batch) * batch_stride + column;
    for (int d = 0; d < depth; ++d) from += fault.checked_index(indices[slice * depth + d], dims[d]) * strides[d];
    out[i] = in[from];
  }
};

class GatherND : public Op {
 public:
  explicit GatherND(const NodeInfo& node) : batch_dims_(node.get_int("batch_dims", 0)) {
    require(batch_dims_ >= 0, "batch_dims is ", batch_dims_);
    if (const auto indices = node.input_dims(1); indices && !indices->empty()) check_depth(indices->back());
  }
  void run(Context& context) const override {
    const Tensor &in = context.input(0), &indices = context.input(1);
    const int rank = in.shape.rank(), index_rank = indices.shape.rank();
    require(index_rank >= 1 && batch_dims_ < index_rank && batch_dims_ <= rank, "batch_dims ", batch_dims_,
            " does not fit indices of shape ", indices.shape.str());
    const int batch = int(batch_dims_);
    const int64_t depth = indices.shape.back();
    require(depth >= 1 && depth <= rank - batch, "indices of depth ", depth, " for data of shape ", in.shape.str());
    check_depth(depth);
    for (int d = 0; d < batch; ++d)
      require(in.shape[d] == indices.shape[d], "batch dimension ", d, " differs: ", in.shape.str(), " and ",
              indices.shape.str());
    std::vector<int64_t> dims(indices.shape.dims().begin(), indices.shape.dims().end() - 1);
    dims.insert(dims.end(), in.shape.dims().begin() + batch + depth, in.shape.dims().end());
    const Tensor out = context.output(0, Shape(dims));
    if (out.count() == 0) return;
    require(in.count() > 0, "nothing can be gathered from ", in.shape.str());
    int64_t inner = in.shape.count(batch + int(depth), rank);
    const int64_t narrow = inner;
    size_t bytes = device::size_bytes(in.type);
    widen(inner, bytes, {in.data, out.data});
    const int64_t slices = indices.shape.count(0, index_rank - 1), factor = narrow / inner;
    const auto strides = strides_of(in.shape);
    dispatch_size(bytes, [&]<class T>() {
      GatherSlices<T> gather{in.as<const T>(),
                             out.as<T>(),
                             indices_of(indices),
                             int(depth),
                             inner,
                             in.shape.count(batch, rank) / factor,
                             Divider(inner, slices * inner),
                             Divider(indices.shape.count(batch, index_rank - 1), slices * inner),
                             {},
                             {},
                             context.fault()};
      for (int d = 0; d < int(depth); ++d) {
        gather.dims[d] = in.shape[batch + d];
        gather.strides[d] = strides[size_t(batch + d)] / factor;
      }
      device::for_each_index(context.stream(), slices * inner, gather);
    });
  }

 private:
  static void check_depth(int64_t depth) {
    if (depth > kMostDepth)
      fail(Code::not_supported, "indices of depth ", depth, "; up to ", kMostDepth, " are supported");
  }

  int64_t batch_dims_;
};

}  // namespace

std::vector<OpRow> gather_rows() {
  return {
      {.name = "Gather", .since = 1, .types = {in(0, kFixedSize), in(1, kIndices)}, .make = make<Gather>},
      {.name = "GatherElements",
       .since = 11,
       .types = {in(0, kFixedSize), in(1, kIndices)},
       .make = make<GatherElements>},
      {.name = "GatherND", .since = 11, .types = {in(0, kFixedSize), in(1, Types{Type::i64})}, .make = make<GatherND>},
  };
}

}  // namespace encore::ops
