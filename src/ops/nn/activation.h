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
    choose<T, false>([&](auto curve) { x = curve(x); });
    return x;
  }
  template <class T>
  DEVICE_FN Compute<T> whole(Compute<T> x) const {
    choose<T>([&](auto curve) { x = curve(x); });
    return x;
  }
  // Calls f with the curve, which it may ask again and again; kWhole: not just for simple ones.
  template <class T, bool kWhole = true, class F>
  DEVICE_FN void choose(F f) const {
    using C = Compute<T>;
    const C a = C(alpha), b = C(beta);
    switch (kind) {
      case Kind::relu: return f([](C x) { return relu(x); });
      case Kind::leaky_relu: return f([a](C x) { return leaky_relu(x, a); });
      case Kind::clip:  // the upper limit counts where it is below the lower one
        return f([a, b](C x) {
          const C raised = x < a ? a : x;
          return raised > b ? b : raised;
        });
      case Kind::hard_sigmoid: return f([a, b](C x) { return hard_sigmoid(x, a, b); });
      case Kind::hard_swish: return f([](C x) { return hard_swish(x); });
      case Kind::sigmoid:
        return f([](C x) {
          if constexpr (kIsHalf<T>)
            return rough_sigmoid(x);
          else
            return sigmoid(x);
        });
      case Kind::silu:
      case Kind::quick_gelu:
        return f([slope = kind == Kind::silu ? C(1) : a](C x) {
          if constexpr (kIsHalf<T>)
            return rough_silu(x, slope);
          else
            return silu(x, slope);
        });
      default:
        if constexpr (kWhole) {
          if (kind == Kind::tanh) return f([](C x) { return std::tanh(x); });
          if (kind == Kind::gelu) return f(Rough<T, GeluByErf>());
          if (kind == Kind::fast_gelu) return f(Rough<T, GeluByTanh>());
        }
        return f([](C x) { return x; });
    }
  }

 private:
  template <class T, class F>
  struct Rough {
    DEVICE_FN Compute<T> operator()(Compute<T> x) const {
      if constexpr (kIsHalf<T>)
        return F().rough(x);
      else
        return F()(x);
    }
  };
};

// y[i] = activation(y[i]), of floats.
void activate(StreamRef stream, Type type, int64_t n, const Activation& activation, void* y);

}  // namespace encore::ops
