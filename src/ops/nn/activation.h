// An activation that another kernel does at its end.
#pragma once
#include <cmath>

#include "ops/op.h"

namespace encore::ops {

struct Activation {
  enum class Kind { none, relu, leaky_relu, clip, hard_sigmoid, hard_swish, sigmoid, silu, tanh };
  Kind kind = Kind::none;
  float alpha = 0, beta = 0;

  // As com.microsoft's FusedConv names it, with its activation_params; "HardSwish" and "Silu" besides.
  static Activation of(const NodeInfo& node);

  // Whether simple() does it, in a few instructions.
  bool is_simple() const { return kind != Kind::sigmoid && kind != Kind::silu && kind != Kind::tanh; }

  template <class T>
  DEVICE_FN T simple(T x) const {
    switch (kind) {
      case Kind::relu: return x < T(0) ? T(0) : x;
      case Kind::leaky_relu: return x < T(0) ? T(alpha) * x : x;
      case Kind::clip: return x < T(alpha) ? T(alpha) : x > T(beta) ? T(beta) : x;
      case Kind::hard_sigmoid: return from_zero_to_one(T(alpha) * x + T(beta));
      case Kind::hard_swish: return x * from_zero_to_one(x * T(1.0 / 6) + T(0.5));
      default: return x;
    }
  }
  template <class T>
  DEVICE_FN T operator()(T x) const {
    switch (kind) {
      case Kind::sigmoid: return T(1) / (T(1) + std::exp(-x));
      case Kind::silu: return x / (T(1) + std::exp(-x));
      case Kind::tanh: return std::tanh(x);
      default: return simple(x);
    }
  }

 private:
  template <class T>
  static DEVICE_FN T from_zero_to_one(T x) {
    return x < T(0) ? T(0) : x > T(1) ? T(1) : x;
  }
};

}  // namespace encore::ops
