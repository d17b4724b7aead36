// The scalar functions of operators, in the type to compute in. Rows are made of them, and elementwise programs.
// An f.rough(float), if there is one, has as many digits as half types keep. Compiled at run time, too, so nothing here
// knows more of a node than that it has attributes.
#pragma once
#include <cmath>
#include <type_traits>

#include "ops/elementwise/curves.h"
#include "ops/elementwise/gelu.h"
#include "ops/elementwise/rough.h"
#include "ops/elementwise/truncate.h"

namespace encore::ops::scalar {

// ---- arithmetic. Integers wrap around.

struct Add {
  static constexpr bool kByRuns = true;
  template <class T>
  DEVICE_FN T operator()(T a, T b) const {
    return T(a + b);
  }
};
struct Sub {
  static constexpr bool kByRuns = true;
  template <class T>
  DEVICE_FN T operator()(T a, T b) const {
    return T(a - b);
  }
};
struct Mul {
  static constexpr bool kByRuns = true;
  template <class T>
  DEVICE_FN T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T> && sizeof(T) < 4)
      return T(uint32_t(a) * uint32_t(b));  // uint16 would be promoted to int, and overflow
    else
      return a * b;
  }
};
// An integer divided by zero gives 0.
struct Quotient {
  static constexpr bool kByRuns = true;
  template <class T>
  DEVICE_FN T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == T(0)) return 0;
      if constexpr (std::is_signed_v<T>) {
        if (b == T(-1))
          return T(std::make_unsigned_t<T>(0) - std::make_unsigned_t<T>(a));  // the least integer is its own
      }
    }
    return T(a / b);
  }
};

// Of integers; divided by zero they leave 0.
struct Remainder {
  bool like_dividend;  // its sign is the dividend's, as C has it; else the divisor's, as Python has it
  template <class T>
  DEVICE_FN T operator()(T a, T b) const {
    if (b == T(0)) return 0;
    if constexpr (std::is_signed_v<T>) {
      if (b == T(-1)) return 0;
      const T rest = T(a % b);
      return !like_dividend && rest != T(0) && (rest < T(0)) != (b < T(0)) ? T(rest + b) : rest;
    } else {
      return T(a % b);
    }
  }
};

// The greatest or the least; NaN if any is.
struct Extreme {
  template <class T>
  using Partial = T;
  bool least;
  static Extreme of(const auto& node) { return Extreme{node.op_type() == "Min"}; }
  static Extreme at_end(Extreme f, int) { return f; }
  template <class T>
  DEVICE_FN T combine(T a, T b) const {
    return (least ? a < b : b < a) || a != a ? a : b;
  }
  template <class T>
  DEVICE_FN T finish(T all) const {
    return all;
  }
};
// By squaring; it wraps around. Negative exponents give 1 / x^-y towards zero, and 0 for the infinity of x = 0.
template <class T>
DEVICE_FN T integer_power(T x, int64_t exponent) {
  if (exponent < 0) return x == T(1) ? T(1) : x == T(-1) ? T(exponent % 2 ? -1 : 1) : T(0);
  using Bits = std::make_unsigned_t<T>;
  Bits power = 1, square = Bits(x);
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) power *= square;
    square *= square;
  }
  return T(power);
}

struct Power {
  template <class T, class Exponent>
  DEVICE_FN T operator()(T x, Exponent y) const {
    if constexpr (std::is_same_v<Exponent, int64_t>) {
      return integer_power(x, y);
    } else if constexpr (std::is_integral_v<T>) {
      // A device's pow may end just below a whole number, which would lose one.
      if (y == std::floor(y) && std::abs(y) < 0x1p53) return integer_power(x, int64_t(y));
      const double power = std::pow(double(x), y), near = std::rint(power);
      return truncated<T>(std::abs(power - near) <= 0x1p-50 * std::abs(near) ? near : power);
    } else if constexpr (std::is_same_v<Exponent, T>) {
      if (y == T(2)) return x * x;
      return std::pow(x, y);
    } else {
      // Of a whole number that T cannot hold it matters whether it is odd.
      const T near = T(y);
      return near == y ? (*this)(x, near) : T(std::pow(double(x), y));
    }
  }
};

// ---- of one operand

// -x, where the negative of the least integer is itself.
template <class T>
DEVICE_FN T negative(T x) {
  if constexpr (std::is_integral_v<T>)
    return T(std::make_unsigned_t<T>(0) - std::make_unsigned_t<T>(x));
  else
    return -x;
}
struct Abs {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>)
      return std::fabs(x);
    else if constexpr (std::is_signed_v<T>)
      return x < T(0) ? negative(x) : x;
    else
      return x;
  }
};
struct Neg {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return negative(x);
  }
};
struct Sign {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    if constexpr (std::is_signed_v<T>)
      return x > T(0) ? T(1) : x < T(0) ? T(-1) : x;  // 0 and NaN are their own
    else
      return x > T(0);
  }
};
struct Exp {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::exp(x);
  }
};
struct Log {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::log(x);
  }
};
struct Sqrt {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::sqrt(x);
  }
};
struct Reciprocal {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return T(1) / x;
  }
};
struct Erf {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::erf(x);
  }
  DEVICE_FN float rough(float x) const { return rough_erf(x); }
};
struct Ceil {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::ceil(x);
  }
};
struct Floor {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::floor(x);
  }
};
struct Round {  // halves go to the even neighbour
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::rint(x);
  }
};

struct Inverted {
  DEVICE_FN uint8_t operator()(uint8_t x) const { return x == 0; }
};
// ---- comparisons and logic. Anything compared with NaN is false.

struct Same {
  template <class T>
  DEVICE_FN bool operator()(T a, T b) const {
    return a == b;
  }
};
// The four orders share their kernels.
struct Ordered {
  bool descending, or_equal;
  Ordered() = default;
  explicit Ordered(const auto& node)
      : descending(node.op_type().starts_with("Greater")), or_equal(node.op_type().ends_with("OrEqual")) {}
  template <class T>
  DEVICE_FN bool operator()(T a, T b) const {
    const bool strictly = descending ? b < a : a < b;
    return strictly || (or_equal && a == b);
  }
};
struct Both {
  DEVICE_FN uint8_t operator()(uint8_t a, uint8_t b) const { return a && b; }
};
struct Either {
  DEVICE_FN uint8_t operator()(uint8_t a, uint8_t b) const { return a || b; }
};
struct OneOnly {
  DEVICE_FN uint8_t operator()(uint8_t a, uint8_t b) const { return !a != !b; }
};

// ---- activations

struct Relu {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return relu(x);
  }
};
struct LeakyRelu {
  float alpha;
  LeakyRelu() = default;
  explicit LeakyRelu(const auto& node) : alpha(node.get_float("alpha", 0.01f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return leaky_relu(x, T(alpha));
  }
};
struct Elu {
  float alpha;
  Elu() = default;
  explicit Elu(const auto& node) : alpha(node.get_float("alpha", 1.f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return elu(x, T(alpha));
  }
};
struct Selu {
  float alpha, gamma;
  Selu() = default;
  explicit Selu(const auto& node)
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
  explicit HardSigmoid(const auto& node) : alpha(node.get_float("alpha", 0.2f)), beta(node.get_float("beta", 0.5f)) {}
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
  explicit ParametricSoftplus(const auto& node)
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
  explicit Celu(const auto& node) : alpha(node.get_float("alpha", 1.f)) {}
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
  explicit Swish(const auto& node) : alpha(node.get_float("alpha", 1.f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return silu(x, T(alpha));
  }
  DEVICE_FN float rough(float x) const { return rough_silu(x, alpha); }
};
struct ThresholdedRelu {
  float alpha;
  ThresholdedRelu() = default;
  explicit ThresholdedRelu(const auto& node) : alpha(node.get_float("alpha", 1.f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return x > T(alpha) ? x : T(0);
  }
};
// Nothing between -lambd and lambd, and what is outside comes nearer by the bias.
struct Shrink {
  float lambd, bias;
  Shrink() = default;
  explicit Shrink(const auto& node) : lambd(node.get_float("lambd", 0.5f)), bias(node.get_float("bias", 0.f)) {}
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
  explicit ScaledTanh(const auto& node) : alpha(node.get_float("alpha", 1.f)), beta(node.get_float("beta", 1.f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return T(alpha) * std::tanh(T(beta) * x);
  }
};
struct Affine {
  float alpha, beta;
  Affine() = default;
  explicit Affine(const auto& node) : alpha(node.get_float("alpha", 1.f)), beta(node.get_float("beta", 0.f)) {}
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return T(alpha) * x + T(beta);
  }
};

// ---- linear quantization. Integers are whole floats.

// From `low` to `high`, which NaN becomes the least of.
struct ToLinear {
  float scale, zero_point, low, high;
  DEVICE_FN float operator()(float x) const {
    float whole = std::rint(x / scale) + zero_point;
    whole = whole > low ? whole : low;
    return whole < high ? whole : high;
  }
};
struct FromLinear {
  float scale, zero_point;
  DEVICE_FN float operator()(float x) const { return (x - zero_point) * scale; }
};

}  // namespace encore::ops::scalar
