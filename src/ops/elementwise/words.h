// Values of a program that has integers: an integer is an int64, and of a float a word has the bits. Bools are floats,
// as in all programs.
#pragma once
#include <bit>

#include "device/half.h"
#include "device/type.h"
#include "ops/elementwise/integer_call.h"
#include "ops/elementwise/scalar_calls.h"
#include "ops/elementwise/truncate.h"

namespace encore::ops {

DEVICE_FN int64_t word_of(float x) { return int64_t(std::bit_cast<uint32_t>(x)); }
DEVICE_FN float float_of(int64_t word) { return std::bit_cast<float>(uint32_t(word)); }

// As the single Cast has it.
DEVICE_FN int64_t word_of_float(device::Type type, float x) {
  switch (type) {
    case device::Type::i64: return truncated<int64_t>(x);
    case device::Type::i32: return truncated<int32_t>(x);
    case device::Type::f16: return word_of(float(device::Half(x)));
    case device::Type::bf16: return word_of(float(device::BFloat16(x)));
    default: return word_of(x);
  }
}
DEVICE_FN int64_t word_of_integer(device::Type type, int64_t x) {
  switch (type) {
    case device::Type::i64: return x;
    case device::Type::i32: return int32_t(x);
    case device::Type::boolean: return word_of(x != 0);
    default: return word_of_float(type, float(x));
  }
}

// A call whose operands are integers, or floats; a condition is a float.
struct WordCall {
  NamedCall named;
  bool of_integers;
  device::Type type;  // of what it makes

  template <int kPack>
  DEVICE_FN device::Pack<int64_t, kPack> operator()(device::Pack<int64_t, kPack> a,
                                                    const device::Pack<int64_t, kPack>& b,
                                                    const device::Pack<int64_t, kPack>& c) const {
    if (named.function == ScalarFunction::select) {
      UNROLL for (int k = 0; k < kPack; ++k) a.at[k] = float_of(a.at[k]) != 0 ? b.at[k] : c.at[k];
    } else if (of_integers) {
      UNROLL for (int k = 0; k < kPack; ++k) a.at[k] =
          word_of_integer(type, integer_call(named.function, a.at[k], b.at[k]));
    } else {
      const auto made = named(floats_of(a), floats_of(b), floats_of(c));
      UNROLL for (int k = 0; k < kPack; ++k) a.at[k] = word_of_float(type, made.at[k]);
    }
    return a;
  }

 private:
  template <int kPack>
  DEVICE_FN static device::Pack<float, kPack> floats_of(const device::Pack<int64_t, kPack>& words) {
    device::Pack<float, kPack> floats;
    UNROLL for (int k = 0; k < kPack; ++k) floats.at[k] = float_of(words.at[k]);
    return floats;
  }
};

}  // namespace encore::ops
