// An activation that another kernel does at its end.
#pragma once
#include "ops/elementwise/curves.h"
#include "ops/elementwise/rough.h"
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

  // Of what becomes a T: with as many digits as that keeps.
  template <class T>
  DEVICE_FN Compute<T> simple(Compute<T> x) const {
    using C = Compute<T>;
    switch (kind) {
      case Kind::relu: return relu(x);
      case Kind::leaky_relu: return leaky_relu(x, C(alpha));
      case Kind::clip: {  // the upper limit counts where it is below the lower one
        const C raised = x < C(alpha) ? C(alpha) : x;
        return raised > C(beta) ? C(beta) : raised;
      }
      case Kind::hard_sigmoid: return hard_sigmoid(x, C(alpha), C(beta));
      case Kind::hard_swish: return hard_swish(x);
      case Kind::sigmoid:
        if constexpr (kIsHalf<T>)
          return rough_sigmoid(x);
        else
          return sigmoid(x);
      case Kind::silu:
        if constexpr (kIsHalf<T>)
          return rough_silu(x);
        else
          return silu(x);
      default: return x;
    }
  }
  template <class T>
  DEVICE_FN Compute<T> whole(Compute<T> x) const {
    return kind == Kind::tanh ? std::tanh(x) : simple<T>(x);
  }
};

}  // namespace encore::ops
