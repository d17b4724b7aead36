// An activation that another kernel does at its end.
#pragma once
#include "ops/elementwise/curves.h"
#include "ops/elementwise/gelu.h"
#include "ops/elementwise/rough.h"
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
    gelu,
    fast_gelu,
    tanh,
    scaled_relu,  // times alpha, plus beta
    scaled_hard_swish
  };
  Kind kind = Kind::none;
  float alpha = 0, beta = 0;

  // As com.microsoft's FusedConv names it in `attribute`, with its activation_params; "HardSwish", "Silu", the Gelu
  // family, "ScaledRelu" and "ScaledHardSwish" besides.
  static Activation of(const NodeInfo& node, const std::string& attribute = "activation");

  // Whether simple() does it, in a few instructions.
  bool is_simple(Type type) const {
    const bool is_half = type == Type::f16 || type == Type::bf16;
    return is_half || !(kind == Kind::gelu || kind == Kind::fast_gelu || kind == Kind::tanh);
  }

  // Of what becomes Ts: with as many digits as these keep.
  template <class T, int kCount>
  DEVICE_FN void simple(Compute<T> (&x)[kCount]) const {
    choose<T, false>([&](auto curve) { UNROLL for (int i = 0; i < kCount; ++i) x[i] = curve(x[i]); });
  }
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
      case Kind::scaled_relu: return f([a, b](C x) { return relu(x) * a + b; });
      case Kind::scaled_hard_swish: return f([a, b](C x) { return hard_swish(x) * a + b; });
      default: break;
    }
    const C slope = kind == Kind::silu ? C(1) : a;
    if constexpr (kIsHalf<T>) {
      switch (kind) {
        case Kind::sigmoid: return f([](C x) { return rough_sigmoid(x); });
        case Kind::silu:
        case Kind::quick_gelu: return f([slope](C x) { return rough_silu(x, slope); });
        case Kind::gelu: return f([](C x) { return GeluByErf().rough(x); });
        case Kind::fast_gelu: return f([](C x) { return GeluByTanh().rough(x); });
        case Kind::tanh: return f([](C x) { return rough_tanh(x); });
        default: break;
      }
    } else {
      switch (kind) {
        case Kind::sigmoid: return f([](C x) { return sigmoid(x); });
        case Kind::silu:
        case Kind::quick_gelu: return f([slope](C x) { return silu(x, slope); });
        default: break;
      }
      if constexpr (kWhole) {
        switch (kind) {
          case Kind::gelu: return f(GeluByErf());
          case Kind::fast_gelu: return f(GeluByTanh());
          case Kind::tanh: return f([](C x) { return std::tanh(x); });
          default: break;
        }
      }
    }
    f([](C x) { return x; });
  }
  // The same where f is much code: on the virtual GPU there is one of it, which chooses for each value.
  template <class T, bool kWhole = true, class F>
  DEVICE_FN void choose_once(F f) const {
#ifdef __CUDACC__
    choose<T, kWhole>(f);
#else
    using C = Compute<T>;
    f([this](C x) {
      choose<T, kWhole>([&](auto curve) { x = curve(x); });
      return x;
    });
#endif
  }
};

// y[i] = activation(y[i]), of floats.
void activate(StreamRef stream, Type type, int64_t n, const Activation& activation, void* y);

}  // namespace encore::ops
