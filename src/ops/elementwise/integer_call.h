// Scalar functions of integers by name: how elementwise programs call them, interpreted or compiled.
#pragma once
#include <cstdint>

#include "ops/elementwise/scalar_function.h"
#include "ops/elementwise/scalar_functions.h"

namespace encore::ops {

// Of one or two, and none that are chosen. What is to be an int32 wraps around afterwards; a comparison gives 0 or 1.
DEVICE_FN int64_t integer_call(ScalarFunction function, int64_t a, int64_t b) {
  using enum ScalarFunction;
  const auto ordered = [&](bool descending, bool or_equal) {
    scalar::Ordered f;
    f.descending = descending, f.or_equal = or_equal;
    return f(a, b);
  };
  switch (function) {  // without a sign they wrap around
    case add: return int64_t(scalar::Add{}(uint64_t(a), uint64_t(b)));
    case sub: return int64_t(scalar::Sub{}(uint64_t(a), uint64_t(b)));
    case mul: return int64_t(scalar::Mul{}(uint64_t(a), uint64_t(b)));
    case quotient: return scalar::Quotient{}(a, b);
    case remainder: return scalar::Remainder{false}(a, b);
    case remainder_of_c: return scalar::Remainder{true}(a, b);
    case least: return scalar::Extreme{true}.combine(a, b);
    case greatest: return scalar::Extreme{false}.combine(a, b);
    case same: return a == b;
    case below: return ordered(false, false);
    case below_or_same: return ordered(false, true);
    case above: return ordered(true, false);
    case above_or_same: return ordered(true, true);
    case abs: return scalar::Abs{}(a);
    case neg: return scalar::Neg{}(a);
    case sign: return scalar::Sign{}(a);
    default: return a;  // a cast
  }
}

}  // namespace encore::ops
