// Activation functions.
#include <cmath>
#include <type_traits>

#include "ops/choice.h"
#include "ops/elementwise/convert.h"
#include "ops/elementwise/curves.h"
#include "ops/elementwise/gelu.h"
#include "ops/elementwise/unary.h"

namespace encore::ops {
namespace {

struct Relu {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return relu(x);
  }
};
struct LeakyRelu {
  float alpha;
  LeakyRelu() = default;
  explicit LeakyRelu(const NodeInfo& node) : alpha(node.get_float("alpha", 0.01f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return leaky_relu(x, T(alpha));
  }
};
struct Elu {
  float alpha;
  Elu() = default;
  explicit Elu(const NodeInfo& node) : alpha(node.get_float("alpha", 1.f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return elu(x, T(alpha));
  }
};
struct Selu {
  float alpha, gamma;
  Selu() = default;
  explicit Selu(const NodeInfo& node)
      : alpha(node.get_float("alpha", 1.67326319217681884765625f)),
        gamma(node.get_float("gamma", 1.05070102214813232421875f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return T(gamma) * (x > T(0) ? x : T(alpha) * std::expm1(x));
  }
};
struct Sigmoid {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return sigmoid(x);
  }
  DEVICE_FN float rough(float x) const { return rough_sigmoid(x); }
};
struct HardSigmoid {
  float alpha, beta;
  HardSigmoid() = default;
  explicit HardSigmoid(const NodeInfo& node)
      : alpha(node.get_float("alpha", 0.2f)), beta(node.get_float("beta", 0.5f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return hard_sigmoid(x, T(alpha), T(beta));
  }
};
struct HardSwish {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return hard_swish(x);
  }
};
struct Softplus {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return softplus(x);
  }
};
// alpha * log(1 + e^(beta x)), of the first opset.
struct ParametricSoftplus {
  float alpha, beta;
  ParametricSoftplus() = default;
  explicit ParametricSoftplus(const NodeInfo& node)
      : alpha(node.get_float("alpha", 1.f)), beta(node.get_float("beta", 1.f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return T(alpha) * softplus(T(beta) * x);
  }
};
struct Softsign {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return softsign(x);
  }
};
struct Celu {
  float alpha;
  Celu() = default;
  explicit Celu(const NodeInfo& node) : alpha(node.get_float("alpha", 1.f)) {
    if (alpha == 0) fail(Code::not_supported, "attribute alpha is 0, by which x would be divided");
  }
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return x > T(0) ? x : T(alpha) * std::expm1(x / T(alpha));
  }
};
// x * tanh(log(1 + e^x)), which is x * n / (n + 2) where n = e^x * (e^x + 2).
struct Mish {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    if (x > T(20)) return x;  // to the last digit
    const T power = std::exp(x), n = power * (power + T(2));
    return x * (n / (n + T(2)));
  }
  DEVICE_FN float rough(float x) const {
    if (x > 20.f) return x;
    const float power = rough_exp(x), n = power * (power + 2.f);
    return x * n * device::fast_reciprocal(n + 2.f);
  }
};
struct Swish {
  float alpha;
  Swish() = default;
  explicit Swish(const NodeInfo& node) : alpha(node.get_float("alpha", 1.f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return silu(x, T(alpha));
  }
  DEVICE_FN float rough(float x) const { return rough_silu(x, alpha); }
};
struct ThresholdedRelu {
  float alpha;
  ThresholdedRelu() = default;
  explicit ThresholdedRelu(const NodeInfo& node) : alpha(node.get_float("alpha", 1.f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return x > T(alpha) ? x : T(0);
  }
};
// Nothing between -lambd and lambd, and what is outside comes nearer by the bias.
struct Shrink {
  float lambd, bias;
  Shrink() = default;
  explicit Shrink(const NodeInfo& node) : lambd(node.get_float("lambd", 0.5f)), bias(node.get_float("bias", 0.f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    if constexpr (std::is_integral_v<T>)
      return truncated<T>((*this)(double(x)));
    else
      return x < T(-lambd) ? x + T(bias) : x > T(lambd) ? x - T(bias) : T(0);
  }
};
struct Tanh {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::tanh(x);
  }
  DEVICE_FN float rough(float x) const { return rough_tanh(x); }
};
// alpha * tanh(beta * x), of the first opset.
struct ScaledTanh {
  float alpha, beta;
  ScaledTanh() = default;
  explicit ScaledTanh(const NodeInfo& node) : alpha(node.get_float("alpha", 1.f)), beta(node.get_float("beta", 1.f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return T(alpha) * std::tanh(T(beta) * x);
  }
};
struct Affine {
  float alpha, beta;
  Affine() = default;
  explicit Affine(const NodeInfo& node) : alpha(node.get_float("alpha", 1.f)), beta(node.get_float("beta", 0.f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return T(alpha) * x + T(beta);
  }
};
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

// Experimental in ONNX, and gone from it, but not from its runtime; the schemas are those of opset 1.
template <class F>
OpRow first_row(const char* name) {
  OpRow row = unary_row<F, FloatList>(name, 1, kFloats);
  row.until = 1;
  return row;
}

using ReluList = TypeList<float, Half, BFloat16, double, int8_t, int16_t, int32_t, int64_t>;

}  // namespace

std::vector<OpRow> activation_rows() {
  return {
      unary_row<Relu, ReluList>("Relu", 1, kFloats | kSigned),
      unary_row<LeakyRelu, FloatList>("LeakyRelu", 1, kFloats),
      unary_row<Elu, FloatList>("Elu", 1, kFloats),
      unary_row<Selu, FloatList>("Selu", 1, kFloats),
      unary_row<Sigmoid, FloatList>("Sigmoid", 1, kFloats),
      unary_row<HardSigmoid, FloatList>("HardSigmoid", 1, kFloats),
      unary_row<HardSwish, FloatList>("HardSwish", 14, kFloats),
      unary_row<Softplus, FloatList>("Softplus", 1, kFloats),
      unary_row<Tanh, FloatList>("Tanh", 1, kFloats),
      unary_row<Gelu, FloatList>("Gelu", 20, kFloats),
      unary_row<Softsign, FloatList>("Softsign", 1, kFloats),
      unary_row<Celu, FloatList>("Celu", 12, kFloats),
      unary_row<Mish, FloatList>("Mish", 18, kFloats),
      unary_row<Swish, FloatList>("Swish", 24, kFloats),
      unary_row<ThresholdedRelu, FloatList>("ThresholdedRelu", 1, kFloats),
      unary_row<Shrink, NumberList>("Shrink", 9, kNumbers),
      first_row<Affine>("Affine"),
      first_row<ParametricSoftplus>("ParametricSoftplus"),
      first_row<ScaledTanh>("ScaledTanh"),
  };
}

}  // namespace encore::ops
