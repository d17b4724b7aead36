// Activation functions.
#include <cmath>
#include <type_traits>

#include "ops/choice.h"
#include "ops/elementwise/curves.h"
#include "ops/elementwise/gelu.h"
#include "ops/elementwise/scalar_functions.h"
#include "ops/elementwise/unary.h"

namespace encore::ops {
namespace {

// Experimental in ONNX, and gone from it, but not from its runtime; the schemas are those of opset 1.
template <class F>
OpRow first_row(const char* name) {
  OpRow row = unary_row<F, FloatList>(name, 1, kFloats);
  row.until = 1;
  return row;
}

struct Gelu {
  bool by_tanh;
  Gelu() = default;
  explicit Gelu(const NodeInfo& node) {
    by_tanh = read_choice<bool>(node, "approximate", "none", {{"none", false}, {"tanh", true}});
  }
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return by_tanh ? GeluByTanh()(x) : GeluByErf()(x);
  }
  DEVICE_FN float rough(float x) const { return by_tanh ? GeluByTanh().rough(x) : GeluByErf().rough(x); }
};

struct Celu : scalar::Celu {
  Celu() = default;
  explicit Celu(const NodeInfo& node) : scalar::Celu(node) {
    if (alpha == 0) fail(Code::not_supported, "attribute alpha is 0, by which x would be divided");
  }
};

using ReluList = TypeList<float, Half, BFloat16, double, int8_t, int16_t, int32_t, int64_t>;

}  // namespace

std::vector<OpRow> activation_rows() {
  return {
      unary_row<scalar::Relu, ReluList>("Relu", 1, kFloats | kSigned),
      unary_row<scalar::LeakyRelu, FloatList>("LeakyRelu", 1, kFloats),
      unary_row<scalar::Elu, FloatList>("Elu", 1, kFloats),
      unary_row<scalar::Selu, FloatList>("Selu", 1, kFloats),
      unary_row<scalar::Sigmoid, FloatList>("Sigmoid", 1, kFloats),
      unary_row<scalar::HardSigmoid, FloatList>("HardSigmoid", 1, kFloats),
      unary_row<scalar::HardSwish, FloatList>("HardSwish", 14, kFloats),
      unary_row<scalar::Softplus, FloatList>("Softplus", 1, kFloats),
      unary_row<scalar::Tanh, FloatList>("Tanh", 1, kFloats),
      unary_row<Gelu, FloatList>("Gelu", 20, kFloats),
      unary_row<scalar::Softsign, FloatList>("Softsign", 1, kFloats),
      unary_row<Celu, FloatList>("Celu", 12, kFloats),
      unary_row<scalar::Mish, FloatList>("Mish", 18, kFloats),
      unary_row<scalar::Swish, FloatList>("Swish", 24, kFloats),
      unary_row<scalar::ThresholdedRelu, FloatList>("ThresholdedRelu", 1, kFloats),
      unary_row<scalar::Shrink, NumberList>("Shrink", 9, kNumbers),
      first_row<scalar::Affine>("Affine"),
      first_row<scalar::ParametricSoftplus>("ParametricSoftplus"),
      first_row<scalar::ScaledTanh>("ScaledTanh"),
  };
}

}  // namespace encore::ops
