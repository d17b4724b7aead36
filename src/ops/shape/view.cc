// Ops that give the same elements another shape. Where output and input share memory nothing is moved.
#include <algorithm>

#include "ops/host_vector.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"
#include "ops/shape/strided_view.h"

namespace encore::ops {
namespace {

void same_elements(Context& context, const Tensor& in, const Shape& shape) {
  const Tensor out = context.output(0, shape);
  copy_bytes(context.stream(), in.data, out.data, int64_t(in.bytes()), in.where);
}

// Axes from the input of opset 13, else from the attribute; empty if neither is there. There are models in which one
// axis is a scalar.
std::optional<std::vector<int64_t>> axes_of(Context& context, const std::optional<std::vector<int64_t>>& attribute,
                                            bool or_scalar) {
  const Tensor* axes = context.find_input(1);
  if (!axes) return attribute;
  return or_scalar && axes->shape.rank() == 0 ? host_ints(*axes, "axes") : host_vector(*axes, "axes");
}

class Identity : public Op {
 public:
  explicit Identity(const NodeInfo&) {}
  void run(Context& context) const override { same_elements(context, context.input(0), context.input(0).shape); }
};

class Reshape : public Op {
 public:
  explicit Reshape(const NodeInfo& node)
      : allow_zero_(node.get_int("allowzero", 0) == 1), shape_(node.find_ints("shape")) {}
  void run(Context& context) const override {
    const Tensor& in = context.input(0);
    const std::vector<int64_t> given = shape_ ? std::vector<int64_t>() : host_vector(context.input(1), "shape");
    same_elements(context, in, reshaped(in.shape, shape_ ? *shape_ : given, allow_zero_));
  }

 private:
  bool allow_zero_;
  std::optional<std::vector<int64_t>> shape_;
};

class Flatten : public Op {
 public:
  explicit Flatten(const NodeInfo& node) : axis_(node.get_int("axis", 1)) {}
  void run(Context& context) const override {
    const Tensor& in = context.input(0);
    const int rank = in.shape.rank();
    require(axis_ >= -rank && axis_ <= rank, "axis ", axis_, " is outside [", -rank, ",", rank, "]");
    const int axis = int(axis_ < 0 ? axis_ + rank : axis_);
    same_elements(context, in, Shape{in.shape.count(0, axis), in.shape.count(axis, rank)});
  }

 private:
  int64_t axis_;
};

class Squeeze : public Op {
 public:
  explicit Squeeze(const NodeInfo& node) : axes_(node.find_ints("axes")) {}
  void run(Context& context) const override {
    const Tensor& in = context.input(0);
    std::vector<bool> drop(size_t(in.shape.rank()));
    if (const auto axes = axes_of(context, axes_, false)) {
      for (int64_t given : *axes) {
        const int axis = checked_axis(given, in.shape.rank());
        require(in.shape[axis] == 1, "axis ", given, " of ", in.shape.str(), " is not 1 and cannot be squeezed");
        drop[size_t(axis)] = true;
      }
    } else {
      for (int i = 0; i < in.shape.rank(); ++i) drop[size_t(i)] = in.shape[i] == 1;
    }
    std::vector<int64_t> dims;
    for (int i = 0; i < in.shape.rank(); ++i)
      if (!drop[size_t(i)]) dims.push_back(in.shape[i]);
    same_elements(context, in, Shape(dims));
  }

 private:
  std::optional<std::vector<int64_t>> axes_;
};

class Unsqueeze : public Op {
 public:
  explicit Unsqueeze(const NodeInfo& node) : axes_(node.find_ints("axes")) {}
  void run(Context& context) const override {
    const Tensor& in = context.input(0);
    const auto axes = axes_of(context, axes_, true);
    require(axes.has_value(), "axes are missing");
    const int rank = in.shape.rank() + int(axes->size());
    std::vector<bool> added(static_cast<size_t>(rank));
    for (int64_t given : *axes) {
      const int axis = checked_axis(given, rank);
      require(!added[size_t(axis)], "axis ", given, " is there twice");
      added[size_t(axis)] = true;
    }
    std::vector<int64_t> dims;
    for (int i = 0, from = 0; i < rank; ++i) dims.push_back(added[size_t(i)] ? 1 : in.shape[from++]);
    same_elements(context, in, Shape(dims));
  }

 private:
  std::optional<std::vector<int64_t>> axes_;
};

class ShapeOf : public Op {
 public:
  explicit ShapeOf(const NodeInfo& node) : start_(node.get_int("start", 0)), end_(node.find_int("end")) {}
  void run(Context& context) const override {
    const Shape& shape = context.input(0).shape;
    const int64_t rank = shape.rank();
    const auto clamped = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank); };
    const int64_t first = clamped(start_), last = std::max(first, clamped(end_.value_or(rank)));
    const Tensor out = context.output(0, Shape{last - first});
    std::copy(shape.dims().begin() + first, shape.dims().begin() + last, out.as<int64_t>());
  }

 private:
  int64_t start_;
  std::optional<int64_t> end_;
};

class Size : public Op {
 public:
  explicit Size(const NodeInfo&) {}
  void run(Context& context) const override { *context.output(0, Shape{}).as<int64_t>() = context.input(0).count(); }
};

// A tensor is there; what may hold none never comes here, but an input that is left out does.
class OptionalHasElement : public Op {
 public:
  explicit OptionalHasElement(const NodeInfo& node) : has_(node.has_input(0)) {}
  void run(Context& context) const override { *context.output(0, Shape{}).as<bool>() = has_; }

 private:
  bool has_;
};

}  // namespace

std::vector<OpRow> view_rows() {
  return {
      {.name = "Identity",
       .since = 1,
       .types = {in(0, kFixedSize | kPacked)},
       .make = make<Identity>,
       .alias = {{0, 0}},
       .anywhere = true},
      {.name = "Reshape",
       .since = 1,
       .types = {in(0, kFixedSize | kPacked)},
       .make = make<Reshape>,
       .host_inputs = {1},
       .alias = {{0, 0}},
       .anywhere = true},
      {.name = "Flatten",
       .since = 1,
       .types = {in(0, kFixedSize | kPacked)},
       .make = make<Flatten>,
       .alias = {{0, 0}},
       .anywhere = true},
      {.name = "Squeeze",
       .since = 1,
       .types = {in(0, kFixedSize | kPacked)},
       .make = make<Squeeze>,
       .host_inputs = {1},
       .alias = {{0, 0}},
       .anywhere = true},
      {.name = "Unsqueeze",
       .since = 1,
       .types = {in(0, kFixedSize | kPacked)},
       .make = make<Unsqueeze>,
       .host_inputs = {1},
       .alias = {{0, 0}},
       .anywhere = true},
      {.name = "Shape", .since = 1, .types = {in(0, kFixedSize | kPacked)}, .make = make<ShapeOf>, .host_outputs = {0}},
      {.name = "Size", .since = 1, .types = {in(0, kFixedSize | kPacked)}, .make = make<Size>, .host_outputs = {0}},
      {.name = "OptionalGetElement",
       .since = 18,
       .types = {in(0, kFixedSize | kPacked)},
       .make = make<Identity>,
       .alias = {{0, 0}}},
      {.name = "OptionalHasElement",
       .since = 18,
       .types = {in(0, kFixedSize | kPacked)},
       .make = make<OptionalHasElement>,
       .host_outputs = {0}},
  };
}

}  // namespace encore::ops
