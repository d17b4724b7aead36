// What the source of a compiled elementwise program is written in: program_source.cc makes a line of each load, call
// and store. Compiled at run time.
#pragma once
#include <bit>
#include <cstdint>
#include <type_traits>

#include "device/half.h"
#include "ops/elementwise/integer_call.h"
#include "ops/elementwise/program_arguments.h"
#include "ops/elementwise/scalar_calls.h"
#include "ops/elementwise/truncate.h"

namespace encore::compiled {

using device::BFloat16, device::Half;
using ops::ScalarFunction;
// Integers are computed with in int64, all else in float.
template <class T>
inline constexpr bool kIsInteger = std::is_same_v<T, int32_t> || std::is_same_v<T, int64_t>;
template <class T>
using Computed = std::conditional_t<kIsInteger<T>, int64_t, float>;
template <class T, int kPack>
using Values = device::Pack<Computed<T>, kPack>;

// How elements lie in memory.
template <class T>
using Element = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

// Neighbours, at an address that suits a pack of them.
template <class T, int kPack>
DEVICE_FN Values<T, kPack> pack(const void* from, int64_t place) {
  const auto pack =
      *reinterpret_cast<const device::Pack<Element<T>, kPack>*>(static_cast<const Element<T>*>(from) + place);
  Values<T, kPack> values;
  UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = Computed<T>(pack.at[k]);
  return values;
}
// Neighbours, at any address.
template <class T, int kPack>
DEVICE_FN Values<T, kPack> each(const void* from, int64_t place) {
  Values<T, kPack> values;
  UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = Computed<T>(static_cast<const Element<T>*>(from)[place + k]);
  return values;
}
// One for all.
template <class T, int kPack>
DEVICE_FN Values<T, kPack> one(const void* from, int64_t place) {
  const auto value = Computed<T>(static_cast<const Element<T>*>(from)[place]);
  Values<T, kPack> values;
  UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = value;
  return values;
}
template <int kPack>
DEVICE_FN Values<float, kPack> number(uint32_t bits) {
  Values<float, kPack> values;
  UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = std::bit_cast<float>(bits);
  return values;
}
template <int kPack>
DEVICE_FN Values<int64_t, kPack> integer(int64_t number) {
  Values<int64_t, kPack> values;
  UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = number;
  return values;
}

template <class T, int kPack>
DEVICE_FN void store(void* to, int64_t first, const Values<T, kPack>& values) {
  device::Pack<Element<T>, kPack> pack;
  UNROLL for (int k = 0; k < kPack; ++k) pack.at[k] = Element<T>(values.at[k]);
  *reinterpret_cast<device::Pack<Element<T>, kPack>*>(static_cast<Element<T>*>(to) + first) = pack;
}

// Where an index lies in a dimension that is begun elsewhere.
DEVICE_FN int rolled(int index, int shift, int size) { return index + (index < size - shift ? shift : shift - size); }

// Sums and products whose roundings compilers leave alone: they would join one to the next.
template <ScalarFunction kFunction>
DEVICE_FN float arithmetic(float a, float b) {
#ifdef __CUDA_ARCH__
  if constexpr (kFunction == ScalarFunction::add) return __fadd_rn(a, b);
  if constexpr (kFunction == ScalarFunction::sub) return __fsub_rn(a, b);
  return __fmul_rn(a, b);
#else
  return kFunction == ScalarFunction::add ? a + b : kFunction == ScalarFunction::sub ? a - b : a * b;
#endif
}

// A function of up to three operands, rounded to T.
template <ScalarFunction kFunction, class T, int kPack>
DEVICE_FN Values<T, kPack> call(uint32_t p, uint32_t q, const Values<float, kPack>& a, const Values<float, kPack>& b,
                                const Values<float, kPack>& c) {
  constexpr bool kIsHalf = sizeof(T) == 2, kIsBoolean = std::is_same_v<T, bool>;
  Values<float, kPack> made;
  if constexpr (kFunction <= ScalarFunction::mul) {
    UNROLL for (int k = 0; k < kPack; ++k) made.at[k] = arithmetic<kFunction>(a.at[k], b.at[k]);
  } else {
    const ops::NamedCall call{kFunction, kIsHalf, kIsBoolean, std::bit_cast<float>(p), std::bit_cast<float>(q)};
    made = call(a, b, c);
  }
  if constexpr (kIsHalf) {
    UNROLL for (int k = 0; k < kPack; ++k) made.at[k] = float(T(made.at[k]));
  }
  if constexpr (kIsInteger<T>) {
    Values<T, kPack> whole;
    UNROLL for (int k = 0; k < kPack; ++k) whole.at[k] = ops::truncated<T>(made.at[k]);
    return whole;
  } else {
    return made;
  }
}

// One of integers, of which the first may be a condition instead.
template <ScalarFunction kFunction, class T, class First, int kPack>
DEVICE_FN Values<T, kPack> call(uint32_t, uint32_t, const device::Pack<First, kPack>& a,
                                const Values<int64_t, kPack>& b, const Values<int64_t, kPack>& c) {
  Values<T, kPack> made;
  UNROLL for (int k = 0; k < kPack; ++k) {
    if constexpr (kFunction == ScalarFunction::select)
      made.at[k] = a.at[k] != 0 ? b.at[k] : c.at[k];
    else if constexpr (std::is_same_v<T, bool>)
      made.at[k] = ops::integer_call(kFunction, a.at[k], b.at[k]) != 0;
    else if constexpr (kIsInteger<T>)
      made.at[k] = T(ops::integer_call(kFunction, a.at[k], b.at[k]));
    else
      made.at[k] = float(T(float(ops::integer_call(kFunction, a.at[k], b.at[k]))));
  }
  return made;
}

}  // namespace encore::compiled
