// Scalar functions by name, of packs of floats: how elementwise programs call them, interpreted or compiled.
#pragma once
#include "device/pack.h"
#include "ops/elementwise/scalar_function.h"
#include "ops/elementwise/scalar_functions.h"

namespace encore::ops {

struct NamedCall {
  ScalarFunction function;
  bool is_half;  // what it makes: as many digits as half types keep will do
  bool makes_boolean;
  float p, q;

  // Of as many operands as the function has.
  template <int kPack>
  DEVICE_FN device::Pack<float, kPack> operator()(device::Pack<float, kPack> a, const device::Pack<float, kPack>& b,
                                                  const device::Pack<float, kPack>& c) const {
    using enum ScalarFunction;
    const auto each = [&](auto f) {
      if constexpr (requires { f.rough(0.f); }) {
        if (is_half) {
          UNROLL for (int k = 0; k < kPack; ++k) a.at[k] = f.rough(a.at[k]);
          return;
        }
      }
      UNROLL for (int k = 0; k < kPack; ++k) a.at[k] = float(f(a.at[k]));
    };
    const auto with_p = [&](auto f) {
      f.alpha = p;
      each(f);
    };
    const auto both_of = [&](auto f) { UNROLL for (int k = 0; k < kPack; ++k) a.at[k] = float(f(a.at[k], b.at[k])); };
    const auto ordered = [&](bool descending, bool or_equal) {
      scalar::Ordered f;
      f.descending = descending, f.or_equal = or_equal;
      both_of(f);
    };
    switch (function) {
      case add: both_of(scalar::Add{}); break;
      case sub: both_of(scalar::Sub{}); break;
      case mul: both_of(scalar::Mul{}); break;
      case quotient: both_of(scalar::Quotient{}); break;
      case least: both_of([](float x, float y) { return scalar::Extreme{true}.combine(x, y); }); break;
      case greatest: both_of([](float x, float y) { return scalar::Extreme{false}.combine(x, y); }); break;
      case power: both_of(scalar::Power{}); break;
      case same: both_of(scalar::Same{}); break;
      case below: ordered(false, false); break;
      case below_or_same: ordered(false, true); break;
      case above: ordered(true, false); break;
      case above_or_same: ordered(true, true); break;
      case both: both_of(scalar::Both{}); break;
      case either: both_of(scalar::Either{}); break;
      case one_only: both_of(scalar::OneOnly{}); break;
      case select: {
        UNROLL for (int k = 0; k < kPack; ++k) a.at[k] = a.at[k] != 0 ? b.at[k] : c.at[k];
        break;
      }
      case cast:
        if (makes_boolean) each([](float x) { return x != 0; });
        break;
      case abs: each(scalar::Abs{}); break;
      case neg: each(scalar::Neg{}); break;
      case sign: each(scalar::Sign{}); break;
      case exp: each(scalar::Exp{}); break;
      case log: each(scalar::Log{}); break;
      case sqrt: each(scalar::Sqrt{}); break;
      case reciprocal: each(scalar::Reciprocal{}); break;
      case erf: each(scalar::Erf{}); break;
      case ceil: each(scalar::Ceil{}); break;
      case floor: each(scalar::Floor{}); break;
      case round: each(scalar::Round{}); break;
      case inverted: each(scalar::Inverted{}); break;
      case relu: each(scalar::Relu{}); break;
      case leaky_relu: with_p(scalar::LeakyRelu()); break;
      case elu: with_p(scalar::Elu()); break;
      case celu: with_p(scalar::Celu()); break;
      case swish: with_p(scalar::Swish()); break;
      case selu: {
        scalar::Selu f;
        f.alpha = p, f.gamma = q;
        each(f);
        break;
      }
      case hard_sigmoid: {
        scalar::HardSigmoid f;
        f.alpha = p, f.beta = q;
        each(f);
        break;
      }
      case sigmoid: each(scalar::Sigmoid{}); break;
      case hard_swish: each(scalar::HardSwish{}); break;
      case softplus: each(scalar::Softplus{}); break;
      case softsign: each(scalar::Softsign{}); break;
      case tanh: each(scalar::Tanh{}); break;
      case mish: each(scalar::Mish{}); break;
      case gelu: each(GeluByErf{}); break;
      case tanh_gelu: each(GeluByTanh{}); break;
      case to_uint8: each(scalar::ToLinear{p, q, 0, 255}); break;
      case to_int8: each(scalar::ToLinear{p, q, -128, 127}); break;
      case from_linear: each(scalar::FromLinear{p, q}); break;
      case remainder:  // of integers alone
      case remainder_of_c: break;
    }
    return a;
  }
};

}  // namespace encore::ops
