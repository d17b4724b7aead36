// Products of eight-bit floats against loops in double.
#include "device/float8_product.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "device/device.h"
#include "on_device.h"

namespace encore::device {
namespace {

class Scratch final : public Workspace {
 public:
  void* at_least(size_t bytes) override {
    blocks_.emplace_back(bytes);
    return blocks_.back().data();
  }

 private:
  std::vector<DeviceArray<char>> blocks_;
};

template <class T>
std::vector<T> random_values(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) value = T(float(engine() >> 8) / float(1 << 21) - 4.0f);
  return values;
}

template <class A, class B, class Out>
void check(int64_t m, int64_t n, int64_t k, bool scaled) {
  Stream stream(0);
  Scratch workspace;
  const auto left = random_values<A>(m * k, 1);
  const auto right = random_values<B>(n * k, 2);
  DeviceArray<A> a(left);
  DeviceArray<B> b(right);
  DeviceArray<Out> c(size_t(m * n));
  const DeviceArray<float> scale_a(std::vector<float>{0.5f}), scale_b(std::vector<float>{0.125f});
  const Float8Product product{kTypeOf<A>, kTypeOf<B>, kTypeOf<Out>, m, n, k, 2.0f};
  Float8Operands at{a.data(), b.data(), c.data()};
  if (scaled) at.scale_a = scale_a.data(), at.scale_b = scale_b.data();
  ASSERT_TRUE(takes(0, product, at)) << describe(product);
  multiply(stream, product, at, workspace);
  const std::vector<Out> got = c.download(stream);
  for (int64_t row = 0; row < m; ++row)
    for (int64_t column = 0; column < n; ++column) {
      double sum = 0, most = 0;
      for (int64_t i = 0; i < k; ++i) {
        const double one = double(float(left[size_t(row * k + i)])) * double(float(right[size_t(column * k + i)]));
        sum += one, most += std::abs(one);
      }
      const double scale = 2 * (scaled ? 0.0625 : 1), want = sum * scale;
      // Tensor cores align what they add up: some 13 bits stay.
      const double slack = 2e-4 * most * scale + (sizeof(Out) == 4 ? 0 : 8e-3) * std::abs(want);
      ASSERT_NEAR(double(float(got[size_t(row * n + column)])), want, slack) << describe(product);
    }
}

TEST(Float8Product, AllTypes) {
  const Description device = describe(0);
  if (std::string(backend()) == "cuda" && device.compute_capability_major * 10 + device.compute_capability_minor < 89)
    GTEST_SKIP() << "no tensor cores for it";
  for (const bool scaled : {false, true, false}) {
    check<Float8E4M3, Float8E4M3, float>(32, 48, 64, scaled);
    check<Float8E4M3, Float8E4M3, Half>(17, 16, 16, scaled);
    check<Float8E4M3, Float8E5M2, BFloat16>(1, 64, 256, scaled);
    check<Float8E5M2, Float8E4M3, Half>(128, 128, 96, scaled);
  }
}

TEST(Float8Product, OthersAreNotTaken) {
  alignas(16) char somewhere[32];
  const Float8Product good{.m = 16, .n = 16, .k = 16};
  const Float8Operands at{somewhere, somewhere, somewhere};
  const auto refuses = [&](auto change, const Float8Operands& operands) {
    Float8Product product = good;
    change(product);
    EXPECT_FALSE(takes(0, product, operands)) << describe(product);
  };
  refuses([](Float8Product& p) { p.a = p.b = Type::f8e5m2; }, at);
  refuses([](Float8Product& p) { p.a = Type::f16; }, at);
  refuses([](Float8Product& p) { p.output = Type::f8e4m3; }, at);
  refuses([](Float8Product& p) { p.n = 24; }, at);
  refuses([](Float8Product& p) { p.k = 0; }, at);
  refuses([](Float8Product& p) { p.m = -1; }, at);
  refuses([](Float8Product&) {}, {somewhere + 8, somewhere, somewhere});
  alignas(16) const float scales[2] = {};
  refuses([](Float8Product&) {}, {somewhere, somewhere, somewhere, scales + 1});
  refuses([](Float8Product&) {}, {somewhere, somewhere, somewhere, nullptr, scales + 1});
}

}  // namespace
}  // namespace encore::device
