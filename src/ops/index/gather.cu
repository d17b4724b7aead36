// Gather, GatherElements and GatherND. An index out of range is never followed: it reads element 0 and is reported.
#include <algorithm>

#include "device/device.h"
#include "device/divide.h"
#include "device/fault.h"
#include "device/launch.h"
#include "device/pieces.h"
#include "ops/dispatch.h"
#include "ops/index/indices.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Divider;
using device::FaultRef;

// out[outer, j, inner] = in[outer, indices[j], inner]
template <class T>
struct GatherRows {
  const T* in;
  T* out;
  Indices indices;
  int64_t dim, inner;
  Divider by_inner, by_indices;
  FaultRef fault;
  DEVICE_FN void operator()(int64_t i) const { out[i] = *find(i).from; }
  DEVICE_FN device::Piece<T> find(int64_t i) const {
    int64_t column, j;
    const int64_t outer = by_indices(by_inner(i, column), j);
    return {in + (outer * dim + fault.checked_index(indices[j], dim)) * inner + column, inner - column};
  }
};
template <class T>
struct GatheredPieces {
  GatherRows<T> rows;
  DEVICE_FN device::Piece<T> operator()(int64_t i) const { return rows.find(i); }
};

// Single elements of rows that fit in shared memory. A thread keeps the indices of a pack for all rows of its block.
template <class T>
struct GatherColumns {
  static constexpr int kMaxThreads = 256, kPack = device::pack_size<T>(), kLoads = 4;
  static constexpr int kTile = 32 * 1024 / int(sizeof(T));
  using Values = device::Pack<T, kPack>;
  struct Shared {
    Values tile[kTile / kPack];
  };
  const T* in;
  T* out;
  Indices indices;
  int64_t rows, count;
  int dim, block_rows, packs, together;  // packs of a row; rows that are written at the same time
  Divider by_packs;
  bool aligned;
  FaultRef fault;
  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const int64_t first = b.index() * block_rows;
    const int here = rows - first < block_rows ? int(rows - first) : block_rows;
    b.threads([&](int t, Shared& s) {
      const T* const from = in + first * dim;
      const int all = here * dim;
      NO_UNROLL for (int at = t * kPack; at < all; at += kLoads * kMaxThreads * kPack) {
        device::UnalignedPack<T> loads[kLoads];
        UNROLL for (int i = 0; i < kLoads; ++i) {
          const int begin = at + i * kMaxThreads * kPack;
          loads[i] = device::UnalignedPack<T>(from + begin, all - begin < kPack ? all - begin : kPack);
        }
        UNROLL for (int i = 0; i < kLoads; ++i) {
          const int begin = at + i * kMaxThreads * kPack;
          if (begin < all) s.tile[begin / kPack] = loads[i].pack();
        }
      }
    });
    b.threads([&](int t, Shared& s) {
      const T* const tile = s.tile[0].at;
      NO_UNROLL for (int item = t; item < packs * together; item += kMaxThreads) {
        int64_t pack;
        const int row = int(by_packs(item, pack));
        // Neighbours if they can be written at once, else what lets the threads write side by side.
        const int64_t begin = aligned ? pack * kPack : pack, step = aligned ? 1 : packs;
        int columns[kPack];
        UNROLL for (int j = 0; j < kPack; ++j) {
          const int64_t at = begin + j * step;
          columns[j] = at < count ? int(fault.checked_index(indices[at], dim)) : 0;
        }
        NO_UNROLL for (int r = row; r < here; r += together) {
          Values values;
          UNROLL for (int j = 0; j < kPack; ++j) values.at[j] = tile[r * dim + columns[j]];
          T* const to = out + (first + r) * count + begin;
          if (aligned) {
            device::store_pack(to, values, true);
          } else {
            UNROLL for (int j = 0; j < kPack; ++j) {
              if (begin + j * step < count) to[j * step] = values.at[j];
            }
          }
        }
      }
    });
  }
};

// Whether GatherColumns does it, and does so faster than one thread for each element.
template <class T>
bool gather_columns(Context& context, const GatherRows<T>& all, int64_t rows, int64_t count) {
  using Kernel = GatherColumns<T>;
  const int64_t blocks = 4 * int64_t(device::multiprocessors(context.stream().device()));
  if (all.inner != 1 || all.dim > Kernel::kTile || count < 8 * Kernel::kPack || count < all.dim / 4 || rows < blocks)
    return false;
  const int64_t block_rows = std::min(Kernel::kTile / all.dim, (rows + blocks - 1) / blocks);
  const int64_t packs = (count + Kernel::kPack - 1) / Kernel::kPack;
  const int64_t together = std::clamp<int64_t>(Kernel::kMaxThreads / packs, 1, block_rows);
  if (packs * together > INT32_MAX) return false;
  const bool aligned = count % Kernel::kPack == 0 && device::is_pack_aligned<Kernel::kPack>(all.out);
  device::block_kernel<typename Kernel::Shared>(
      context.stream(), {(rows + block_rows - 1) / block_rows, Kernel::kMaxThreads},
      Kernel{all.in, all.out, all.indices, rows, count, int(all.dim), int(block_rows), int(packs), int(together),
             Divider(packs, packs * together), aligned, all.fault});
  return true;
}

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
      const GatherRows<T> rows{in.as<const T>(),
                               out.as<T>(),
                               indices_of(indices),
                               in.shape[axis],
                               inner,
                               Divider(inner, count),
                               Divider(indices.count(), count),
                               context.fault()};
      if constexpr (sizeof(T) < 16) {
        if (gather_columns(context, rows, in.shape.count(0, axis), indices.count())) return;
        if (inner >= 2 * device::pack_size<T>())
          return device::fill_rows(context.stream(), rows.out, 1, count, count, true, GatheredPieces<T>{rows});
      }
      device::for_each_index(context.stream(), count, rows);
    });
  }

 private:
  int64_t axis_;
};

// out[i0, .., i_axis, ..] = in[i0, .., indices[i0, .., i_axis, ..], ..]
template <class T>
struct GatherOne {
  const T* in;
  T* out;
  PickedElements picked;
  DEVICE_FN void operator()(int64_t i) const {
    const int64_t from = picked(i);
    out[i] = in[from < 0 ? 0 : from];
  }
};

class GatherElements : public Op {
 public:
  explicit GatherElements(const NodeInfo& node) : axis_(node.get_int("axis", 0)) {}
  void run(Context& context) const override {
    const Tensor &in = context.input(0), &indices = context.input(1);
    const int axis = checked_axis(axis_, in.shape.rank());
    const Tensor out = context.output(0, indices.shape);
    for_picked_elements(in.shape, indices, axis, context.fault(),
                        [&](const PickedElements& picked, int64_t in_from, int64_t from, int64_t count) {
                          dispatch_size(device::size_bytes(in.type), [&]<class T>() {
                            device::for_each_index(
                                context.stream(), count,
                                GatherOne<T>{in.as<const T>() + in_from, out.as<T>() + from, picked});
                          });
                        });
  }

 private:
  int64_t axis_;
};

// out[batch, j, inner] = in[batch, indices[batch, j, :], inner]
template <class T>
struct GatherSlices {
  const T* in;
  T* out;
  PickedSlices picked;
  int64_t batch_stride;
  Divider by_inner, by_batch;  // slices of one batch
  DEVICE_FN void operator()(int64_t i) const {
    int64_t column, in_batch;
    const int64_t slice = by_inner(i, column), from = picked(slice);
    out[i] = in[by_batch(slice, in_batch) * batch_stride + column + (from < 0 ? 0 : from)];
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
    const int64_t slices = indices.shape.count(0, index_rank - 1), unit = narrow / inner;
    dispatch_size(bytes, [&]<class T>() {
      device::for_each_index(
          context.stream(), slices * inner,
          GatherSlices<T>{in.as<const T>(), out.as<T>(), picked_slices(in.shape, indices, batch, unit, context.fault()),
                          in.shape.count(batch, rank) / unit, Divider(inner, slices * inner),
                          Divider(indices.shape.count(batch, index_rank - 1), slices * inner)});
    });
  }

 private:
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
