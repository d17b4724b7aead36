// Ops that are one strided copy.
#include <algorithm>
#include <ranges>

#include "ops/dispatch.h"
#include "ops/host_vector.h"
#include "ops/registry.h"
#include "ops/shape/movement.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

class Transpose : public Op {
 public:
  explicit Transpose(const NodeInfo& node) : perm_(node.find_ints("perm")) {}
  void run(Context& context) const override {
    const Tensor& in = context.input(0);
    const int rank = in.shape.rank();
    require(!perm_ || int(perm_->size()) == rank, "perm has ", perm_ ? perm_->size() : 0, " axes, the input has ",
            rank);
    std::vector<int> from(static_cast<size_t>(rank));
    std::vector<bool> seen(from.size());
    std::vector<int64_t> dims;
    for (int i = 0; i < rank; ++i) {
      const int axis = from[size_t(i)] = perm_ ? checked_axis((*perm_)[size_t(i)], rank, "perm's axis") : rank - 1 - i;
      require(!seen[size_t(axis)], "perm names axis ", axis, " twice");
      seen[size_t(axis)] = true;
      dims.push_back(in.shape[axis]);
    }
    // Where ones alone change their places nothing is moved.
    const bool stays = std::ranges::is_sorted(from | std::views::filter([&](int axis) { return in.shape[axis] != 1; }));
    const Tensor out = stays ? context.output_in_place(0, Shape(dims), 0) : context.output(0, Shape(dims));
    if (stays) return copy_bytes(context.stream(), in.data, out.data, int64_t(in.bytes()), in.where);
    transpose(context.stream(), in, from, out);
  }

 private:
  std::optional<std::vector<int64_t>> perm_;
};

class Slice : public Op {
 public:
  explicit Slice(const NodeInfo& node)
      : starts_(node.find_ints("starts")), ends_(node.find_ints("ends")), axes_(node.find_ints("axes")) {}

  void run(Context& context) const override {
    const Tensor& in = context.input(0);
    const int rank = in.shape.rank();
    const std::vector<int64_t> starts = starts_ ? *starts_ : host_vector(context.input(1), "starts");
    const std::vector<int64_t> ends = ends_ ? *ends_ : host_vector(context.input(2), "ends");
    require(starts.size() == ends.size(), "starts has ", starts.size(), " values, ends ", ends.size());
    std::vector<int64_t> axes, steps(starts.size(), 1);
    if (const Tensor* given = context.find_input(3))
      axes = host_vector(*given, "axes");
    else if (axes_)
      axes = *axes_;
    else
      for (size_t i = 0; i < starts.size(); ++i) axes.push_back(int64_t(i));
    if (const Tensor* given = context.find_input(4)) steps = host_vector(*given, "steps");
    require(axes.size() == starts.size() && steps.size() == starts.size(), "starts has ", starts.size(),
            " values, axes ", axes.size(), " and steps ", steps.size());

    const auto in_strides = strides_of(in.shape);
    std::vector<int64_t> dims(in.shape.dims().begin(), in.shape.dims().end()), step_of(dims.size(), 1);
    int64_t offset = 0;
    std::vector<bool> seen(dims.size());
    for (size_t i = 0; i < axes.size(); ++i) {
      const auto axis = size_t(checked_axis(axes[i], rank));
      require(!seen[axis], "axis ", axes[i], " is there twice");
      seen[axis] = true;
      const int64_t dim = in.shape[int(axis)], step = steps[i];
      require(step != 0, "a step is 0");
      // Anything beyond the ends means the end; adding the dimension must not overflow.
      const auto absolute = [&](int64_t at) { return at < 0 ? (at < -dim ? int64_t(-1) : at + dim) : at; };
      int64_t start = absolute(starts[i]), end = absolute(ends[i]), length = 0;
      if (step > 0) {
        start = std::clamp<int64_t>(start, 0, dim);
        end = is_open(ends[i]) ? dim : std::clamp<int64_t>(end, 0, dim);
        if (end > start) length = 1 + (end - start - 1) / step;
      } else if (dim > 0) {
        start = std::clamp<int64_t>(start, 0, dim - 1);
        end = is_open(ends[i]) ? -1 : std::clamp<int64_t>(end, -1, dim - 1);
        // -step overflows for the smallest integer, which no dimension reaches anyway.
        if (start > end) length = 1 + (start - end - 1) / (step == INT64_MIN ? INT64_MAX : -step);
      }
      dims[axis] = length;
      step_of[axis] = length > 1 ? step : 1;
      if (length > 0) offset += start * in_strides[axis];
    }
    const Tensor out = context.output(0, Shape(dims));
    if (out.count() == 0) return;
    const auto out_strides = strides_of(out.shape);
    const size_t bytes = device::size_bytes(in.type);
    StridedCopy copy;
    for (int i = 0; i < rank; ++i)
      copy.add(dims[size_t(i)], in_strides[size_t(i)] * step_of[size_t(i)], out_strides[size_t(i)]);
    copy.run(context.stream(), in.as<const char>() + offset * int64_t(bytes), out.data, bytes, in.where);
  }

 private:
  // The end of the dimension whichever the direction, as exporters write it and the CPU reads it.
  static bool is_open(int64_t end) { return end == INT32_MAX || end == INT64_MAX; }

  std::optional<std::vector<int64_t>> starts_, ends_, axes_;
};

class Expand : public Op {
 public:
  explicit Expand(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor& in = context.input(0);
    const Shape shape = broadcast(in.shape, Shape(host_ints(context.input(1), "shape")));
    expand(context.stream(), in, shape, context.output(0, shape).data);
  }
};

class Tile : public Op {
 public:
  explicit Tile(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor& in = context.input(0);
    const int rank = in.shape.rank();
    const std::vector<int64_t> repeats = host_vector(context.input(1), "repeats");
    require(int(repeats.size()) == rank, "repeats has ", repeats.size(), " values, the input has rank ", rank);
    std::vector<int64_t> dims;
    for (int i = 0; i < rank; ++i) {
      require(repeats[size_t(i)] >= 0, "repeats holds ", repeats[size_t(i)]);
      dims.push_back(checked_product(in.shape[i], repeats[size_t(i)]));
    }
    const Tensor out = context.output(0, Shape(dims));
    const auto in_strides = strides_of(in.shape), out_strides = strides_of(out.shape);
    StridedCopy copy;
    for (int i = 0; i < rank; ++i) {
      copy.add(repeats[size_t(i)], 0, in.shape[i] * out_strides[size_t(i)]);
      copy.add(in.shape[i], in_strides[size_t(i)], out_strides[size_t(i)]);
    }
    copy.run(context.stream(), in.data, out.data, device::size_bytes(in.type), in.where);
  }
};

// Tile as it first was: along one axis, and how often, are said in the type of the data.
class TileAlong : public Op {
 public:
  explicit TileAlong(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor& in = context.input(0);
    const int axis = checked_axis(whole(context.input(2), "axis"), in.shape.rank());
    const int64_t tiles = whole(context.input(1), "tiles");
    require(tiles >= 0, "tiles is ", tiles);
    const Tensor out = context.output(0, in.shape.with(axis, checked_product(in.shape[axis], tiles)));
    const int64_t inner = in.shape.count(axis, in.shape.rank());
    StridedCopy copy;
    copy.add(in.shape.count(0, axis), inner, inner * tiles);
    copy.add(tiles, 0, inner);
    copy.add(inner, 1, 1);
    copy.run(context.stream(), in.data, out.data, device::size_bytes(in.type));
  }

 private:
  static int64_t whole(const Tensor& given, const char* what) {
    require(given.where == Where::host && given.shape.is_scalar(), what, " has shape ", given.shape.str(),
            "; one number in host memory is wanted");
    double value = 0;
    dispatch(FloatList{}, given.type, [&]<class T>() { value = double(device::Compute<T>(*given.as<const T>())); });
    constexpr double kMost = 1e15;
    require(value >= -kMost && value <= kMost && value == double(int64_t(value)), what, " is ", value);
    return int64_t(value);
  }
};

}  // namespace

void transpose(device::StreamRef stream, const Tensor& in, std::span<const int> from, const Tensor& out) {
  const auto in_strides = strides_of(in.shape), out_strides = strides_of(out.shape);
  StridedCopy copy;
  for (int i = 0; i < out.shape.rank(); ++i)
    copy.add(out.shape[i], in_strides[size_t(from[size_t(i)])], out_strides[size_t(i)]);
  if (device::is_packed(in.type)) return copy.run_packed(stream, in.data, out.data, device::size_bits(in.type));
  copy.run(stream, in.data, out.data, device::size_bytes(in.type), in.where);
}

void expand(device::StreamRef stream, const Tensor& in, const Shape& shape, void* out) {
  const auto in_strides = strides_of(in.shape), out_strides = strides_of(shape);
  const int lead = shape.rank() - in.shape.rank();
  StridedCopy copy;
  for (int i = 0; i < shape.rank(); ++i) {
    const bool repeated = i < lead || in.shape[i - lead] == 1;
    copy.add(shape[i], repeated ? 0 : in_strides[size_t(i - lead)], out_strides[size_t(i)]);
  }
  copy.run(stream, in.data, out, device::size_bytes(in.type), in.where);
}

std::vector<OpRow> move_rows() {
  return {
      {.name = "Transpose",
       .since = 1,
       .types = {in(0, kFixedSize | kPacked)},
       .make = make<Transpose>,
       .anywhere = true},
      {.name = "Slice",
       .since = 1,
       .types = {in(0, kFixedSize)},
       .make = make<Slice>,
       .host_inputs = {1, 2, 3, 4},
       .anywhere = true},
      {.name = "DynamicSlice",
       .since = 1,
       .until = 1,
       .types = {in(0, kFixedSize)},
       .make = make<Slice>,
       .host_inputs = {1, 2, 3},
       .anywhere = true},
      {.name = "Expand",
       .since = 8,
       .types = {in(0, kFixedSize)},
       .make = make<Expand>,
       .host_inputs = {1},
       .anywhere = true},
      {.name = "Tile",
       .since = 1,
       .until = 5,
       .types = {in(0, Types{Type::f16, Type::f32, Type::f64})},
       .make = make<TileAlong>,
       .host_inputs = {1, 2}},
      {.name = "Tile",
       .since = 6,
       .types = {in(0, kFixedSize)},
       .make = make<Tile>,
       .host_inputs = {1},
       .anywhere = true},
  };
}

}  // namespace encore::ops
