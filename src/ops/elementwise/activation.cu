// Activation functions. All let NaN through.
#include <cmath>
#include <type_traits>

#include "ops/elementwise/gelu.h"
#include "ops/elementwise/unary.h"

namespace encore::ops {
namespace {

struct Relu {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return x < T(0) ? T(0) : x;
  }
};
struct LeakyRelu {
  float alpha;
  LeakyRelu() = default;
  explicit LeakyRelu(const NodeInfo& node) : alpha(node.get_float("alpha", 0.01f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return x < T(0) ? T(alpha) * x : x;
  }
};
struct Elu {
  float alpha;
  Elu() = default;
  explicit Elu(const NodeInfo& node) : alpha(node.get_float("alpha", 1.f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return x < T(0) ? T(alpha) * std::expm1(x) : x;
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
    return T(1) / (T(1) + std::exp(-x));
  }
};
template <class T>
DEVICE_FN T from_zero_to_one(T x) {
  return x < T(0) ? T(0) : x > T(1) ? T(1) : x;
}
struct HardSigmoid {
  float alpha, beta;
  HardSigmoid() = default;
  explicit HardSigmoid(const NodeInfo& node)
      : alpha(node.get_float("alpha", 0.2f)), beta(node.get_float("beta", 0.5f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return from_zero_to_one(T(alpha) * x + T(beta));
  }
};
struct HardSwish {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return x * from_zero_to_one(x * T(1.0 / 6) + T(0.5));
  }
};
struct Softplus {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return (x > T(0) ? x : T(0)) + std::log1p(std::exp(-std::fabs(x)));
  }
};
struct Tanh {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::tanh(x);
  }
};
struct Gelu {
  bool by_tanh;
  Gelu() = default;
  explicit Gelu(const NodeInfo& node) {
    const std::string approximate = node.get_string("approximate", "none");
    if (approximate != "none" && approximate != "tanh")
      fail(Code::not_supported, "attribute approximate is '", approximate, "'; it must be 'none' or 'tanh'");
    by_tanh = approximate == "tanh";
  }
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return by_tanh ? GeluByTanh()(x) : GeluByErf()(x);
  }
};

using ReluList = TypeList<float, Half, BFloat16, double, int8_t, int16_t, int32_t, int64_t>;

}  // namespace

std::vector<OpRow> activation_rows() {
  return {
      unary_row<Relu, ReluList>("Relu", 6, kFloats | kSigned),
      unary_row<LeakyRelu, FloatList>("LeakyRelu", 6, kFloats),
      unary_row<Elu, FloatList>("Elu", 6, kFloats),
      unary_row<Selu, FloatList>("Selu", 6, kFloats),
      unary_row<Sigmoid, FloatList>("Sigmoid", 6, kFloats),
      unary_row<HardSigmoid, FloatList>("HardSigmoid", 6, kFloats),
      unary_row<HardSwish, FloatList>("HardSwish", 14, kFloats),
      unary_row<Softplus, FloatList>("Softplus", 1, kFloats),
      unary_row<Tanh, FloatList>("Tanh", 6, kFloats),
      unary_row<Gelu, FloatList>("Gelu", 20, kFloats),
  };
}

}  // namespace encore::ops
