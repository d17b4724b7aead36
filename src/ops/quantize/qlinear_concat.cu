// QLinearConcat: 8-bit integers of several scales side by side in one tensor of one scale.
#include "device/divide.h"
#include "device/launch.h"
#include "ops/quantize/linear_bytes.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

struct JoinBytes {
  const uint8_t* x;
  uint8_t* y;  // the first column of x's
  LinearBytes from, to;
  int64_t row_width;  // of y
  device::Divider by_width;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t column;
    const int64_t row = by_width(i, column);
    y[row * row_width + column] = to.quantized(from.value(x[i]));
  }
};

class QLinearConcat : public Op {
 public:
  explicit QLinearConcat(const NodeInfo& node) : parts_((node.input_count() - kFirst) / 3) {
    require(node.input_count() > kFirst && (node.input_count() - kFirst) % 3 == 0, "there are ", node.input_count(),
            " inputs; a scale and a zero point are wanted, and then tensors with their scales and zero points");
    const auto axis = node.find_int("axis");
    require(axis.has_value(), "axis is missing");
    axis_ = *axis;
    const Types bytes{Type::i8, Type::u8};
    for (int part = 0; part < parts_; ++part) {
      const Type type = node.input_type(kFirst + part * 3), scale = node.input_type(kFirst + part * 3 + 1);
      require(bytes.has(type) && type == node.input_type(1), "input ", kFirst + part * 3, " is of type ",
              device::name(type), "; that of the output's zero point is wanted, int8 or uint8");
      require(scale == Type::f32, "input ", kFirst + part * 3 + 1, " is of type ", device::name(scale),
              "; a float is wanted");
    }
  }
  void run(Context& context) const override {
    const Shape& first = context.input(kFirst).shape;
    const int axis = checked_axis(axis_, first.rank());
    int64_t across = 0;
    for (int part = 0; part < parts_; ++part) {
      const Shape& shape = context.input(kFirst + part * 3).shape;
      require(shape.rank() == first.rank() && shape.with(axis, 0) == first.with(axis, 0), "input ", kFirst + part * 3,
              " has shape ", shape.str(), ", input ", kFirst, " ", first.str(), "; only dimension ", axis,
              " may differ");
      across += shape[axis];
    }
    const Type type = context.input(kFirst).type;
    const LinearBytes to = LinearBytes::of(context, type, 0, 1, "Y");
    const Tensor y = context.output(0, first.with(axis, across));
    const int64_t inner = first.count(axis + 1, first.rank());
    int64_t column = 0;
    for (int part = 0; part < parts_; ++part) {
      const Tensor& x = context.input(kFirst + part * 3);
      const int64_t width = x.shape[axis] * inner;
      const LinearBytes from = LinearBytes::of(context, type, kFirst + part * 3 + 1, kFirst + part * 3 + 2, "an input");
      if (x.count() != 0)
        device::for_each_index(context.stream(), x.count(),
                               JoinBytes{x.as<const uint8_t>(), y.as<uint8_t>() + column, from, to, across * inner,
                                         device::Divider(width, x.count())});
      column += width;
    }
  }

 private:
  static constexpr int kFirst = 2;  // after the output's scale and zero point
  int parts_;
  int64_t axis_;
};

}  // namespace

std::vector<OpRow> qlinear_concat_rows() {
  return {{.domain = kMicrosoft,
           .name = "QLinearConcat",
           .since = 1,
           .until = 1,
           .types = {in(0, Types{Type::f32}), in(1, Types{Type::i8, Type::u8})},
           .make = make<QLinearConcat>}};
}

}  // namespace encore::ops
