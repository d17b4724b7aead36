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
    tanh_gelu,
    tanh
  };
  Kind kind = Kind::none;
  float alpha = 0, beta = 0;

  // As com.microsoft's FusedConv names it in `attribute`, with its activation_params; "HardSwish", "Silu" and Gelus
  // besides.
  static Activation of(const NodeInfo& node, const std::string& attribute = "activation");

  // Whether simple() does it, in a few instructions.
  bool is_simple(Type type) const {
    const bool is_half = type == Type::f16 || type == Type::bf16;
    return is_half || !(kind == Kind::gelu || kind == Kind::tanh_gelu || kind == Kind::tanh);
  }

  // Of what becomes Ts: with as many digits as these keep.
  template <class T, int kCount>
  DEVICE_FN void simple(Compute<T> (&x)[kCount]) const {
    using C = Compute<T>;
    const auto each = [&](auto f) { UNROLL for (int i = 0; i < kCount; ++i) x[i] = f(x[i]); };
    switch (kind) {
      case Kind::relu: return each([](C v) { return relu(v); });
      case Kind::leaky_relu: return each([this](C v) { return leaky_relu(v, C(alpha)); });
      case Kind::clip:  // the upper limit counts where it is below the lower one
        return each([this](C v) {
          const C raised = v < C(alpha) ? C(alpha) : v;
          return raised > C(beta) ? C(beta) : raised;
        });
      case Kind::hard_sigmoid: return each([this](C v) { return hard_sigmoid(v, C(alpha), C(beta)); });
      case Kind::hard_swish: return each([](C v) { return hard_swish(v); });
      default: break;
    }
    if constexpr (kIsHalf<T>) {
      switch (kind) {
        case Kind::sigmoid: return each([](C v) { return rough_sigmoid(v); });
        case Kind::silu: return each([](C v) { return rough_silu(v); });
        case Kind::quick_gelu: return each([this](C v) { return rough_silu(v, alpha); });
        case Kind::gelu: return each([](C v) { return GeluByErf().rough(v); });
        case Kind::tanh_gelu: return each([](C v) { return GeluByTanh().rough(v); });
        case Kind::tanh: return each([](C v) { return rough_tanh(v); });
        default: return;
      }
    } else {
      switch (kind) {
        case Kind::sigmoid: return each([](C v) { return sigmoid(v); });
        case Kind::silu: return each([](C v) { return silu(v); });
        case Kind::quick_gelu: return each([this](C v) { return silu(v, C(alpha)); });
        default: return;
      }
    }
  }
  template <class T>
  DEVICE_FN Compute<T> simple(Compute<T> x) const {
    Compute<T> one[1] = {x};
    simple<T>(one);
    return one[0];
  }
  template <class T>
  DEVICE_FN Compute<T> whole(Compute<T> x) const {
    if constexpr (!kIsHalf<T>) {
      switch (kind) {
        case Kind::gelu: return GeluByErf()(x);
        case Kind::tanh_gelu: return GeluByTanh()(x);
        case Kind::tanh: return std::tanh(x);
        default: break;
      }
    }
    return simple<T>(x);
  }
};

}  // namespace encore::ops
