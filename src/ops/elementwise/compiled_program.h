// What the source of a compiled elementwise program is written in: program_source.cc makes a line of each load, call
// and store. Compiled at run time.
#pragma once
#include <bit>
#include <cstdint>
#include <type_traits>

#include "device/half.h"
#include "ops/elementwise/program_arguments.h"
#include "ops/elementwise/scalar_calls.h"

namespace encore::compiled {

using device::BFloat16, device::Half;
using ops::ScalarFunction;
template <int kPack>
using Values = device::Pack<float, kPack>;

// How elements lie in memory.
template <class T>
using Element = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

// Neighbours, at an address that suits a pack of them.
template <class T, int kPack>
DEVICE_FN Values<kPack> pack(const void* from, int64_t place) {
  const auto pack =
      *reinterpret_cast<const device::Pack<Element<T>, kPack>*>(static_cast<const Element<T>*>(from) + place);
  Values<kPack> values;
  UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = float(pack.at[k]);
  return values;
}
// Neighbours, at any address.
template <class T, int kPack>
DEVICE_FN Values<kPack> each(const void* from, int64_t place) {
  Values<kPack> values;
  UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = float(static_cast<const Element<T>*>(from)[place + k]);
  return values;
}
// One for all.
template <class T, int kPack>
DEVICE_FN Values<kPack> one(const void* from, int64_t place) {
  const auto value = float(static_cast<const Element<T>*>(from)[place]);
  Values<kPack> values;
  UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = value;
  return values;
}
template <int kPack>
DEVICE_FN Values<kPack> number(uint32_t bits) {
  Values<kPack> values;
  UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = std::bit_cast<float>(bits);
  return values;
}

template <class T, int kPack>
DEVICE_FN void store(void* to, int64_t first, const Values<kPack>& values) {
  device::Pack<Element<T>, kPack> pack;
  UNROLL for (int k = 0; k < kPack; ++k) pack.at[k] = Element<T>(values.at[k]);
  *reinterpret_cast<device::Pack<Element<T>, kPack>*>(static_cast<Element<T>*>(to) + first) = pack;
}

// Where an index lies in a dimension that is begun elsewhere.
DEVICE_FN int rolled(int index, int shift, int size) {
  index += shift;
  return index >= size ? index - size : index;
}

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
DEVICE_FN Values<kPack> call(uint32_t p, uint32_t q, const Values<kPack>& a, const Values<kPack>& b,
                             const Values<kPack>& c) {
  constexpr bool kIsHalf = sizeof(T) == 2, kIsBoolean = sizeof(T) == 1;
  Values<kPack> made;
  if constexpr (kFunction <= ScalarFunction::mul) {
    UNROLL for (int k = 0; k < kPack; ++k) made.at[k] = arithmetic<kFunction>(a.at[k], b.at[k]);
  } else {
    const ops::NamedCall call{kFunction, kIsHalf, kIsBoolean, std::bit_cast<float>(p), std::bit_cast<float>(q)};
    made = call(a, b, c);
  }
  if constexpr (kIsHalf) {
    UNROLL for (int k = 0; k < kPack; ++k) made.at[k] = float(T(made.at[k]));
  }
  return made;
}

}  // namespace encore::compiled
