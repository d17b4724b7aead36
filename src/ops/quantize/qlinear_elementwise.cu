// QLinearAdd, QLinearMul, QLinearSigmoid and QLinearLeakyRelu: 8-bit integers, element by element.
#include "device/rounded.h"
#include "device/transform.h"
#include "ops/elementwise/broadcast.h"
#include "ops/elementwise/curves.h"
#include "ops/quantize/linear_bytes.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

// In the order of the CPU EP's operations, so that ties are rounded as there.
struct CombineBytes {
  LinearBytes a, b, y;
  bool multiplies;
  DEVICE_FN uint8_t operator()(uint8_t x, uint8_t z) const {
    if (multiplies) {
      const int product = (a.whole(x) - a.zero_point()) * (b.whole(z) - b.zero_point());
      const float scaled = device::rounded_product(float(product), *a.scale * *b.scale / *y.scale);
      return y.kept_in_range(rint(scaled + float(y.zero_point())));
    }
    const float of_a = *a.scale / *y.scale, of_b = *b.scale / *y.scale;
    const float zeros = fmaf(of_a, float(a.zero_point()), of_b * float(b.zero_point()));
    const float start = float(y.zero_point()) - zeros;
    return y.kept_in_range(rint(fmaf(float(a.whole(x)), of_a, fmaf(float(b.whole(z)), of_b, start))));
  }
};

template <bool kMultiplies>
class QLinearBinary : public Op {
 public:
  explicit QLinearBinary(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor &a = context.input(0), &b = context.input(3);
    require(a.type == b.type, "inputs have types ", device::name(a.type), " and ", device::name(b.type));
    const Shape shape = broadcast(a.shape, b.shape);
    const CombineBytes combine{LinearBytes::of(context, a.type, 1, 2, "A"), LinearBytes::of(context, a.type, 4, 5, "B"),
                               LinearBytes::of(context, a.type, 6, 7, "C"), kMultiplies};
    const Tensor y = context.output(0, shape);
    transform_broadcast<uint8_t, uint8_t, uint8_t>(context.stream(), shape, y.data, combine,
                                                   {{a.shape, a.data}, {b.shape, b.data}});
  }
};

struct CurveBytes {
  LinearBytes x, y;
  bool is_sigmoid;
  float alpha;
  DEVICE_FN uint8_t operator()(uint8_t bits) const {
    const float value = x.value(bits);
    return y.quantized(is_sigmoid ? sigmoid(value) : value >= 0.f ? value : alpha * value);
  }
};

template <bool kSigmoid>
class QLinearCurve : public Op {
 public:
  explicit QLinearCurve(const NodeInfo& node) : alpha_(node.get_float("alpha", 0.01f)) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const CurveBytes curve{LinearBytes::of(context, x.type, 1, 2, "X"), LinearBytes::of(context, x.type, 3, 4, "Y"),
                           kSigmoid, alpha_};
    const Tensor y = context.output(0, x.shape);
    device::transform(context.stream(), x.count(), y.as<uint8_t>(), curve, x.as<const uint8_t>());
  }

 private:
  float alpha_;
};

}  // namespace

std::vector<OpRow> qlinear_elementwise_rows() {
  const Types bytes{Type::i8, Type::u8}, floats{Type::f32};
  const auto binary = [&](const char* name, MakeOp make) {
    return OpRow{.domain = kMicrosoft,
                 .name = name,
                 .since = 1,
                 .until = 1,
                 .types = {in(0, bytes), in(1, floats), in(3, bytes), in(4, floats), in(6, floats), out(0, bytes)},
                 .make = make,
                 .may_reuse = {{0, 0}, {3, 0}}};
  };
  const auto curve = [&](const char* name, MakeOp make) {
    return OpRow{.domain = kMicrosoft,
                 .name = name,
                 .since = 1,
                 .until = 1,
                 .types = {in(0, bytes), in(1, floats), in(3, floats), out(0, bytes)},
                 .make = make,
                 .may_reuse = {{0, 0}}};
  };
  return {binary("QLinearAdd", make<QLinearBinary<false>>), binary("QLinearMul", make<QLinearBinary<true>>),
          curve("QLinearSigmoid", make<QLinearCurve<true>>), curve("QLinearLeakyRelu", make<QLinearCurve<false>>)};
}

}  // namespace encore::ops
