// An activation that another kernel does at its end.
#pragma once
#include "ops/elementwise/curves.h"
#include "ops/elementwise/gelu.h"
#include "ops/op.h"

namespace encore::ops {

struct Activation {
  enum class Kind {
    none,
    relu,
    leaky_relu,
    clip,
    hard_sigmoid,
    hard_swish,
    sigmoid,
    silu,
    quick_gelu,
    tanh,
    gelu,
    fast_gelu
  };
  Kind kind = Kind::none;
  float alpha = 0, beta = 0;

  // As com.microsoft's FusedConv names it in `attribute`, with its activation_params; "HardSwish", "Silu" and the Gelu
  // family besides.
  static Activation of(const NodeInfo& node, const std::string& attribute = "activation");

  // Whether simple() does it, in a few instructions.
  bool is_simple() const { return kind < Kind::tanh; }

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
      case Kind::quick_gelu:
        if constexpr (kIsHalf<T>)
          return rough_silu(x, alpha);
        else
          return silu(x, C(alpha));
      default: return x;
    }
  }
  template <class T>
  DEVICE_FN Compute<T> whole(Compute<T> x) const {
    switch (kind) {
      case Kind::tanh: return std::tanh(x);
      case Kind::gelu: return curve<T>(GeluByErf(), x);
      case Kind::fast_gelu: return curve<T>(GeluByTanh(), x);
      default: return simple<T>(x);
    }
  }

 private:
  template <class T, class F>
  DEVICE_FN static Compute<T> curve(F f, Compute<T> x) {
    if constexpr (kIsHalf<T>)
      return f.rough(x);
    else
      return f(x);
  }
};

// y[i] = activation(y[i]), of floats.
void activate(StreamRef stream, Type type, int64_t n, const Activation& activation, void* y);

}  // namespace encore::ops
