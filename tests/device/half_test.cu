// Conversions of the small float types, on the host and in kernels, against tables of every value made in double.
#include "device/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>

#include "device/error.h"
#include "device/type.h"
#include "kernels.h"

namespace encore::device::tests {

template <class T>
struct Widen {
  const T* x;
  float* y;
  DEVICE_FN void operator()(int64_t i) const { y[i] = float(x[i]); }
};
template <class T>
struct Narrow {
  const float* x;
  T* y;
  DEVICE_FN void operator()(int64_t i) const { y[i] = T(x[i]); }
};
template <class T>
struct NarrowUnsaturated {
  const float* x;
  T* y;
  DEVICE_FN void operator()(int64_t i) const { y[i] = T(x[i], false); }
};

namespace {

// A format: sign, exponent and mantissa bits. Without infinity (E4M3FN) only the all-ones pattern is not a number.
template <class T>
struct Format;
template <>
struct Format<Half> {
  static constexpr int exponent = 5, mantissa = 10;
  static constexpr bool infinity = true, saturates = false;
};
template <>
struct Format<BFloat16> {
  static constexpr int exponent = 8, mantissa = 7;
  static constexpr bool infinity = true, saturates = false;
};
template <>
struct Format<Float8E5M2> {
  static constexpr int exponent = 5, mantissa = 2;
  static constexpr bool infinity = true, saturates = true;
};
template <>
struct Format<Float8E4M3> {
  static constexpr int exponent = 4, mantissa = 3;
  static constexpr bool infinity = false, saturates = true;
};

template <class T>
constexpr uint32_t kPatterns = 1u << (8 * sizeof(T));
template <class T>
constexpr uint32_t kSign = kPatterns<T> / 2;

template <class T>
T of_bits(uint32_t bits) {
  T value;
  value.bits = static_cast<decltype(value.bits)>(bits);
  return value;
}

// What a pattern means.
template <class T>
double meaning(uint32_t bits) {
  using F = Format<T>;
  const int exponent = int(bits >> F::mantissa) & ((1 << F::exponent) - 1);
  const int mantissa = int(bits) & ((1 << F::mantissa) - 1);
  const double sign = bits & kSign<T> ? -1 : 1;
  constexpr int kBias = (1 << (F::exponent - 1)) - 1, kOnes = (1 << F::exponent) - 1;
  if (exponent == kOnes && (F::infinity ? mantissa != 0 : mantissa == (1 << F::mantissa) - 1)) return NAN;
  if (exponent == kOnes && F::infinity) return sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - kBias - F::mantissa);
  return sign * std::ldexp((1 << F::mantissa) + mantissa, exponent - kBias - F::mantissa);
}

// The patterns of the finite values that are not negative: they ascend with their bits.
template <class T>
const std::vector<double>& finite_values() {
  static const std::vector<double> values = [] {
    std::vector<double> all;
    for (uint32_t bits = 0; bits < kSign<T> && std::isfinite(meaning<T>(bits)); ++bits) all.push_back(meaning<T>(bits));
    return all;
  }();
  return values;
}

// The nearest pattern, the even one of two as near.
template <class T>
uint32_t nearest(float value, bool saturate) {
  const auto& values = finite_values<T>();
  const uint32_t sign = std::signbit(value) ? kSign<T> : 0, largest = uint32_t(values.size()) - 1;
  const double magnitude = std::fabs(double(value));
  const uint32_t beyond = saturate ? largest : largest + 1;  // infinity, or not a number without one
  if (std::isinf(value)) return sign | beyond;
  const size_t above = size_t(std::upper_bound(values.begin(), values.end(), magnitude) - values.begin());
  const double low = values[above - 1];
  const double high = above < values.size() ? values[above] : 2 * values[largest] - values[largest - 1];
  const double middle = low + (high - low) / 2;  // exact
  const uint32_t below = uint32_t(above) - 1;
  const bool up = magnitude > middle || (magnitude == middle && below % 2 == 1);
  const uint32_t chosen = below + up;
  return sign | (chosen > largest ? beyond : chosen);
}

// Every value, every middle between two, and the floats beside all of them; then the edges of float itself.
template <class T>
std::vector<float> interesting_floats() {
  std::vector<float> all = {0.f, 1e-45f, 1e-40f, 1.17549435e-38f, 3.4e38f, FLT_MAX, INFINITY, NAN};
  const auto& values = finite_values<T>();
  for (size_t i = 0; i < values.size(); ++i) {
    const double next = i + 1 < values.size() ? values[i + 1] : 2 * values[i] - values[i - 1];
    for (double each : {values[i], values[i] + (next - values[i]) / 2, next}) {
      const float f = float(each);
      all.insert(all.end(), {f, std::nextafterf(f, INFINITY), std::nextafterf(f, -INFINITY)});
    }
  }
  for (size_t i = all.size(); i-- > 0;) all.push_back(-all[i]);
  return all;
}

template <class T>
bool is_nan(T value) {
  return std::isnan(meaning<T>(value.bits));
}

template <class T>
void expect_narrowed(float from, T to, bool saturate) {
  if (std::isnan(from)) {
    ASSERT_TRUE(is_nan(to)) << int(to.bits);
    return;
  }
  const uint32_t expected = nearest<T>(from, saturate);
  if (is_nan(of_bits<T>(expected)) && is_nan(to)) return;
  ASSERT_EQ(uint32_t(to.bits), expected) << std::hexfloat << from;
}

template <class T>
void expect_widened(uint32_t bits, float seen) {
  const double expected = meaning<T>(bits);
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(seen)) << bits;
  } else {
    ASSERT_EQ(double(seen), expected) << bits;
    ASSERT_EQ(std::signbit(seen), std::signbit(expected)) << bits;
  }
}

template <class T>
class SmallFloat : public ::testing::Test {};
using SmallFloats = ::testing::Types<Half, BFloat16, Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(SmallFloat, SmallFloats);

TYPED_TEST(SmallFloat, WidensEveryPattern) {
  using T = TypeParam;
  Stream stream(0);
  std::vector<T> patterns;
  for (uint32_t bits = 0; bits < kPatterns<T>; ++bits) patterns.push_back(of_bits<T>(bits));
  DeviceArray<T> x(patterns);
  DeviceArray<float> y(patterns.size());
  for_each_index(stream, int64_t(patterns.size()), Widen<T>{x.data(), y.data()});
  const auto seen = y.download(stream);
  for (uint32_t bits = 0; bits < kPatterns<T>; ++bits) {
    expect_widened<T>(bits, float(patterns[bits]));
    expect_widened<T>(bits, seen[bits]);
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(SmallFloat, ComesBackFromFloat) {
  using T = TypeParam;
  for (uint32_t bits = 0; bits < kPatterns<T>; ++bits) {
    const double value = meaning<T>(bits);
    if (std::isnan(value) || (std::isinf(value) && Format<T>::saturates)) continue;
    ASSERT_EQ(uint32_t(T(float(of_bits<T>(bits))).bits), bits);
  }
}

TYPED_TEST(SmallFloat, NarrowsToTheNearest) {
  using T = TypeParam;
  Stream stream(0);
  const std::vector<float> floats = interesting_floats<T>();
  DeviceArray<float> x(floats);
  DeviceArray<T> y(floats.size());
  for_each_index(stream, int64_t(floats.size()), Narrow<T>{x.data(), y.data()});
  const auto seen = y.download(stream);
  for (size_t i = 0; i < floats.size(); ++i) {
    expect_narrowed(floats[i], T(floats[i]), Format<T>::saturates);
    expect_narrowed(floats[i], seen[i], Format<T>::saturates);
    if (this->HasFatalFailure()) return;
  }
}

// Floats of all magnitudes, evenly spread over their patterns.
TYPED_TEST(SmallFloat, NarrowsArbitraryFloats) {
  using T = TypeParam;
  for (uint64_t bits = 0; bits < (uint64_t(1) << 32); bits += 8191) {
    const float value = std::bit_cast<float>(uint32_t(bits));
    expect_narrowed(value, T(value), Format<T>::saturates);
    if (this->HasFatalFailure()) return;
  }
}

template <class T>
class Float8 : public ::testing::Test {};
using Float8s = ::testing::Types<Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(Float8, Float8s);

TYPED_TEST(Float8, NarrowsUnsaturated) {
  using T = TypeParam;
  Stream stream(0);
  const std::vector<float> floats = interesting_floats<T>();
  DeviceArray<float> x(floats);
  DeviceArray<T> y(floats.size());
  for_each_index(stream, int64_t(floats.size()), NarrowUnsaturated<T>{x.data(), y.data()});
  const auto seen = y.download(stream);
  for (size_t i = 0; i < floats.size(); ++i) {
    expect_narrowed(floats[i], T(floats[i], false), false);
    expect_narrowed(floats[i], seen[i], false);
    if (this->HasFatalFailure()) return;
  }
}

TEST(SmallFloats, KnownValues) {
  EXPECT_EQ(Half(65504.f).bits, 0x7bff);
  EXPECT_EQ(Half(65520.f).bits, 0x7c00);
  EXPECT_EQ(Half(-0.f).bits, 0x8000);
  EXPECT_EQ(BFloat16(1.f).bits, 0x3f80);
  EXPECT_EQ(Float8E4M3(1000.f).bits, 0x7e);
  EXPECT_EQ(Float8E4M3(-INFINITY).bits, 0xfe);
  EXPECT_EQ(Float8E5M2(1e9f).bits, 0x7b);
  EXPECT_EQ(Float8E5M2(1e9f, false).bits, 0x7c);
}

TEST(SmallFloats, WithoutInfinity) {
  EXPECT_EQ(Float8E4M3Fnuz(240.f).bits, 0x7f);
  EXPECT_EQ(Float8E4M3Fnuz(-1000.f).bits, 0xff);
  EXPECT_EQ(Float8E4M3Fnuz(1000.f, false).bits, 0x80);
  EXPECT_EQ(Float8E5M2Fnuz(-0.f).bits, 0);
  EXPECT_EQ(Float8E5M2Fnuz(NAN).bits, 0x80);
  for (int bits = 0; bits < 256; ++bits) {
    if (bits == 0x80) continue;
    EXPECT_EQ(Float8E4M3Fnuz(float(of_bits<Float8E4M3Fnuz>(uint32_t(bits)))).bits, bits);
    EXPECT_EQ(Float8E5M2Fnuz(float(of_bits<Float8E5M2Fnuz>(uint32_t(bits)))).bits, bits);
  }
}

TEST(SmallFloats, PowersOfTwoAndFourBits) {
  for (int bits = 0; bits < 255; ++bits) {
    const float value = of_bits<Float8E8M0>(uint32_t(bits));
    EXPECT_EQ(Float8E8M0(value).bits, bits);
    EXPECT_EQ(Float8E8M0(value, false, PowerRounding::nearest).bits, bits);
  }
  EXPECT_EQ(Float8E8M0(NAN).bits, 255);
  EXPECT_EQ(Float8E8M0(0.f, false).bits, 255);
  for (uint32_t bits = 0; bits < 16; ++bits) EXPECT_EQ(float4_bits(float4_value(bits)), bits);
  EXPECT_EQ(float4_bits(100.f), 7u);
}

TEST(Type, HasNamesAndSizes) {
  EXPECT_STREQ(name(Type::f32), "float");
  EXPECT_STREQ(name(Type::bf16), "bfloat16");
  EXPECT_STREQ(name(Type::f4e2m1), "float4e2m1");
  EXPECT_STREQ(name(Type::i2), "int2");
  EXPECT_STREQ(name(Type(99)), "unknown");
  EXPECT_EQ(size_bytes(kTypeOf<Half>), sizeof(Half));
  EXPECT_EQ(size_bytes(kTypeOf<BFloat16>), sizeof(BFloat16));
  EXPECT_EQ(size_bytes(kTypeOf<Float8E4M3>), sizeof(Float8E4M3));
  EXPECT_EQ(size_bytes(kTypeOf<double>), sizeof(double));
  EXPECT_EQ(size_bytes(kTypeOf<int64_t>), sizeof(int64_t));
  EXPECT_EQ(size_bytes(Type::complex128), 16u);
  EXPECT_EQ(size_bytes(Type::string), 0u);
  EXPECT_EQ(size_bytes(Type::i4), 0u);
  EXPECT_EQ(size_bits(Type::i4), 4);
  EXPECT_EQ(size_bits(Type::string), 0);
  EXPECT_TRUE(is_packed(Type::f4e2m1) && is_packed(Type::u2) && !is_packed(Type::f8e8m0));
  EXPECT_EQ(size_bytes(Type::i4, 3), 2u);
  EXPECT_EQ(size_bytes(Type::u2, 9), 3u);
  EXPECT_EQ(size_bytes(Type::u2, INT64_MAX), size_t(INT64_MAX) / 4 + 1);
  EXPECT_EQ(size_bytes(Type::f32, 3), 12u);
  EXPECT_EQ(size_bytes(Type::string, 3), 0u);
  EXPECT_THROW(size_bytes(Type::f64, INT64_MAX), Error);
}

}  // namespace
}  // namespace encore::device::tests
