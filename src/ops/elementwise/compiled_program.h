// What the source of a compiled elementwise program is written in: program_source.cc makes a line of each load, call
// and store. Compiled at run time.
#pragma once
#include <bit>
#include <cstdint>

#include "device/half.h"
#include "ops/elementwise/program_arguments.h"
#include "ops/elementwise/scalar_calls.h"

namespace encore::compiled {

using device::BFloat16, device::Half;
using ops::ScalarFunction;
using Arguments = ops::ProgramArguments;
template <int kPack>
using Values = device::Pack<float, kPack>;

// How elements lie in memory.
template <class T>
struct Stored {
  using Element = T;
};
template <>
struct Stored<bool> {
  using Element = uint8_t;
};
template <class T>
using Element = typename Stored<T>::Element;

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

// A float that its neighbours in the program see as it is: products and sums would be rounded once otherwise.
DEVICE_FN float rounded(float x) {
#ifdef __CUDA_ARCH__
  asm("" : "+f"(x));
#endif
  return x;
}

template <ScalarFunction kFunction, class T, int kPack>
DEVICE_FN Values<kPack> call(uint32_t p, uint32_t q, const Values<kPack>& a, const Values<kPack>& b,
                             const Values<kPack>& c) {
  constexpr bool kIsHalf = sizeof(T) == 2, kIsBoolean = sizeof(T) == 1;
  Values<kPack> made =
      ops::NamedCall{kFunction, kIsHalf, kIsBoolean, std::bit_cast<float>(p), std::bit_cast<float>(q)}(a, b, c);
  UNROLL for (int k = 0; k < kPack; ++k) {
    if constexpr (kIsHalf)
      made.at[k] = float(T(made.at[k]));
    else
      made.at[k] = rounded(made.at[k]);
  }
  return made;
}

}  // namespace encore::compiled
