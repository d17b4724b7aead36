// An activation that another kernel does at its end.
#pragma once
#include "ops/elementwise/curves.h"
#include "ops/op.h"

namespace encore::ops {

struct Activation {
  enum class Kind { none, relu, leaky_relu, clip, hard_sigmoid, hard_swish, sigmoid, silu, tanh };
  Kind kind = Kind::none;
  float alpha = 0, beta = 0;

  // As com.microsoft's FusedConv names it in `attribute`, with its activation_params; "HardSwish" and "Silu" besides.
  static Activation of(const NodeInfo& node, const std::string& attribute = "activation");

  // Whether simple() does it, in a few instructions.
  bool is_simple() const { return kind != Kind::tanh; }

  template <class T>
  DEVICE_FN T simple(T x) const {
    switch (kind) {
      case Kind::relu: return relu(x);
      case Kind::leaky_relu: return leaky_relu(x, T(alpha));
      case Kind::clip: {  // the upper limit counts where it is below the lower one
        const T raised = x < T(alpha) ? T(alpha) : x;
        return raised > T(beta) ? T(beta) : raised;
      }
      case Kind::hard_sigmoid: return hard_sigmoid(x, T(alpha), T(beta));
      case Kind::hard_swish: return hard_swish(x);
      case Kind::sigmoid: return sigmoid(x);
      case Kind::silu: return silu(x);
      default: return x;
    }
  }
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return kind == Kind::tanh ? std::tanh(x) : simple(x);
  }
};

}  // namespace encore::ops
