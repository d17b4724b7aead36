// Products by tiles in each of their ways, whatever a node would take.
#include "ops/matmul/tile_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "../device/on_device.h"
#include "../device/product_case.h"
#include "device/graph.h"
#include "device/half.h"
#include "device/tensor_map.h"

namespace encore::ops {
namespace {

using device::BFloat16;
using device::DeviceArray;
using device::Gemm;
using device::Half;

constexpr TileRoom kRoom{.multiprocessors = 132, .most_parts = 8, .warpgroups = true};
using Kind = Activation::Kind;

double after(const Activation& activation, double x) {
  const double alpha = activation.alpha, beta = activation.beta;
  const auto sigmoid = [](double value) { return 1 / (1 + std::exp(-value)); };
  const auto hard_sigmoid = [&](double slope) { return std::fmin(std::fmax(slope * x + 0.5, 0), 1); };
  switch (activation.kind) {
    case Kind::relu: return x < 0 ? 0 : x;
    case Kind::leaky_relu: return x < 0 ? alpha * x : x;
    case Kind::clip: return std::fmin(std::fmax(x, alpha), beta);
    case Kind::hard_sigmoid: return hard_sigmoid(alpha);
    case Kind::hard_swish: return x * hard_sigmoid(1.0 / 6);
    case Kind::sigmoid: return sigmoid(x);
    case Kind::silu: return x * sigmoid(x);
    case Kind::quick_gelu: return x * sigmoid(alpha * x);
    case Kind::tanh: return std::tanh(x);
    case Kind::gelu: return x / 2 * (1 + std::erf(x / std::sqrt(2)));
    case Kind::fast_gelu: return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    default: return x;
  }
}

template <class T>
class TileGemmTest : public ::testing::Test {
 protected:
  using Case = device::Case<T>;
  struct Operands {
    explicit Operands(const Case& problem) : a(problem.a), b(problem.b), c(problem.c), bias(problem.bias) {}
    DeviceArray<T> a, b, c, bias;
    ProductData data(const Case& problem) const {
      return {a.data(), b.data(), problem.gemm.has_bias ? bias.data() : nullptr, c.data()};
    }
  };
  std::vector<T> run(const Case& problem, TileGemmWay way, const Activation& activation = {}) {
    const Operands on_device(problem);
    tile_gemm(stream, problem.gemm, on_device.data(problem), activation, way);
    return on_device.c.download(stream);
  }
  static std::vector<TileGemmWay> ways(const Case& problem) {
    const Operands on_device(problem);
    return tile_gemm_ways(problem.gemm, on_device.data(problem), 0);
  }
  static std::string text_of(const TileGemmWay& way) { return text("shape ", int(way.shape), " in ", way.parts); }
  // Whether rows of b may be columns of the product.
  static std::vector<bool> layouts() {
    if (std::is_same_v<T, float>) return {true};
    return {false, true};
  }
  static Gemm with_tf32(Gemm gemm) {
    gemm.tf32 = std::is_same_v<T, float>;
    return gemm;
  }
  // In each way that there is.
  void check(const Gemm& gemm) {
    const Case problem(with_tf32(gemm));
    const auto all = ways(problem);
    EXPECT_EQ(all.size(), size_t(4 * tile_shapes(device::kTypeOf<T>, device::has_warpgroups(0))));
    for (const TileGemmWay& way : all) {
      SCOPED_TRACE(text_of(way));
      problem.expect_equal(run(problem, way));
    }
  }

  device::Stream stream{0};
};
using Types = ::testing::Types<Half, BFloat16, float>;
TYPED_TEST_SUITE(TileGemmTest, Types);

TYPED_TEST(TileGemmTest, RowsAndSizes) {
  constexpr int64_t kSizes[][3] = {{1, 8, 8}, {7, 64, 64}, {33, 40, 136}, {65, 72, 200}, {129, 24, 328}, {5, 8, 1032}};
  for (const auto& [m, n, k] : kSizes)
    for (const bool transposed : this->layouts()) this->check({.m = m, .n = n, .k = k, .transpose_b = transposed});
}

TYPED_TEST(TileGemmTest, WeightsMayBeReadAhead) {
  for (const bool transposed : this->layouts())
    for (const int64_t k : {40, 1288})
      this->check({.m = 34, .n = 24, .k = k, .transpose_b = transposed, .constant_b = true});
}

TYPED_TEST(TileGemmTest, RowsLieApart) {
  for (const bool transposed : this->layouts())
    this->check(
        {.m = 35, .n = 48, .k = 80, .transpose_b = transposed, .lda = 88, .ldb = transposed ? 96 : 56, .ldc = 64});
}

TYPED_TEST(TileGemmTest, ScalesAndBias) {
  for (const bool transposed : this->layouts())
    for (const float beta : {0.0f, -0.5f})
      for (const bool has_bias : {false, true})
        this->check({.m = 34,
                     .n = 72,
                     .k = 136,
                     .transpose_b = transposed,
                     .alpha = 0.25f,
                     .beta = beta,
                     .has_bias = has_bias});
}

TYPED_TEST(TileGemmTest, EndsWithAnActivation) {
  using T = TypeParam;
  const Activation kAll[] = {{Kind::relu},
                             {Kind::leaky_relu, 0.1f},
                             {Kind::clip, -1.f, 2.f},
                             {Kind::hard_swish},
                             {Kind::hard_sigmoid, 0.25f, 0.5f},
                             {Kind::sigmoid},
                             {Kind::silu},
                             {Kind::quick_gelu, 1.702f},
                             {Kind::tanh},
                             {Kind::gelu},
                             {Kind::fast_gelu}};
  const bool transposed = this->layouts().front();
  const device::Case<T> problem(
      this->with_tf32({.m = 40, .n = 72, .k = 136, .transpose_b = transposed, .beta = 1, .has_bias = true}));
  for (const TileGemmWay& way : this->ways(problem)) {
    const std::vector<T> sums = this->run(problem, way);
    for (const Activation& activation : kAll) {
      const std::vector<T> got = this->run(problem, way, activation);
      for (size_t i = 0; i < got.size(); ++i) {
        const double want = after(activation, double(float(sums[i])));
        ASSERT_NEAR(float(got[i]), want, (device::kUnit<T> + 2e-5) * std::abs(want) + 1e-6)
            << this->text_of(way) << ", " << int(activation.kind) << " of " << float(sums[i]);
      }
    }
  }
}

TYPED_TEST(TileGemmTest, WhatIsNotFiniteStaysInItsRowAndColumn) {
  using T = TypeParam;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const bool transposed : this->layouts()) {
    const Gemm gemm = this->with_tf32({.m = 66, .n = 40, .k = 72, .transpose_b = transposed});
    device::Case<T> problem(gemm);
    const auto b = [&](int64_t at, int64_t column) -> T& {
      return problem.b[size_t(transposed ? column * gemm.k + at : at * gemm.n + column)];
    };
    b(gemm.k - 1, 5) = T(infinity), b(0, 39) = T(std::nanf(""));
    for (int64_t row = 0; row < gemm.m; ++row) problem.a[size_t((row + 1) * gemm.k - 1)] = T(row == 1 ? 0.f : 2.f);
    for (const TileGemmWay& way : this->ways(problem)) {
      const std::vector<T> got = this->run(problem, way);
      for (int64_t row = 0; row < gemm.m; ++row)
        for (int64_t column = 0; column < gemm.n; ++column) {
          const float value = float(got[size_t(row * gemm.n + column)]);
          if (column == 39 || (column == 5 && row == 1))
            ASSERT_TRUE(std::isnan(value)) << row << ", " << column;
          else if (column == 5)
            ASSERT_EQ(value, infinity);
          else
            ASSERT_TRUE(std::isfinite(value)) << row << ", " << column;
        }
    }
  }
}

TYPED_TEST(TileGemmTest, TheSumMayGoElsewhere) {
  const bool transposed = this->layouts().front();
  const device::Case<TypeParam> problem(
      this->with_tf32({.m = 40, .n = 64, .k = 64, .transpose_b = transposed, .beta = 1}));
  DeviceArray<TypeParam> a(problem.a), b(problem.b), c(problem.c), beside(problem.c.size());
  for (const int parts : {1, 4})
    for (int i = 0; i < 2; ++i) {
      tile_gemm(this->stream, problem.gemm, {a.data(), b.data(), nullptr, beside.data(), c.data()}, {}, {parts});
      problem.expect_equal(beside.download(this->stream));
    }
}

TYPED_TEST(TileGemmTest, ReplaysTheSameBits) {
  using T = TypeParam;
  const bool transposed = this->layouts().front();
  const device::Case<T> problem(
      this->with_tf32({.m = 50, .n = 64, .k = 1000, .transpose_b = transposed, .has_bias = true, .constant_b = true}));
  for (const TileGemmWay& way : this->ways(problem)) {
    const std::vector<T> eager = this->run(problem, way, {Kind::gelu});
    const typename TestFixture::Operands on_device(problem);
    begin_capture(this->stream, device::CaptureMode::thread_local_);
    tile_gemm(this->stream, problem.gemm, on_device.data(problem), {Kind::gelu}, way);
    const auto exec = end_capture(this->stream).instantiate();
    for (int i = 0; i < 2; ++i) {
      exec.launch(this->stream);
      const std::vector<T> got = on_device.c.download(this->stream);
      EXPECT_EQ(std::memcmp(got.data(), eager.data(), got.size() * sizeof got[0]), 0) << this->text_of(way);
    }
  }
}

Gemm halves(int64_t m, int64_t n, int64_t k) {
  return {.type = Type::f16, .output = Type::f16, .m = m, .n = n, .k = k, .lda = k, .ldb = n, .ldc = n};
}

TEST(TileGemm, LeavesOtherProductsAlone) {
  const auto ways = [](auto change) {
    Gemm gemm = halves(128, 768, 768);
    ProductData data{};
    change(gemm, data);
    return tile_gemm_ways(gemm, data, 0).size();
  };
  const auto address = [](uintptr_t at) { return reinterpret_cast<void*>(at); };
  EXPECT_EQ(ways([](Gemm&, ProductData&) {}), device::has_warpgroups(0) ? 24u : 16u);
  EXPECT_EQ(ways([](Gemm& g, ProductData&) { g.n = g.ldb = g.ldc = 772; }), 0u);
  EXPECT_EQ(ways([](Gemm& g, ProductData&) { g.k = 764; }), 0u);
  EXPECT_EQ(ways([](Gemm& g, ProductData&) { g.k = 0; }), 0u);
  EXPECT_EQ(ways([](Gemm& g, ProductData&) { g.lda = 769; }), 0u);
  EXPECT_EQ(ways([](Gemm& g, ProductData&) { g.batch = 2; }), 0u);
  EXPECT_EQ(ways([](Gemm& g, ProductData&) { g.transpose_a = true; }), 0u);
  EXPECT_EQ(ways([](Gemm& g, ProductData&) { g.output = Type::f32; }), 0u);
  EXPECT_EQ(ways([](Gemm& g, ProductData&) { g.type = g.output = Type::f32; }), 0u);
  const auto floats = [](Gemm& g) {
    g.type = g.output = Type::f32;
    g.ldb = g.k;
    g.transpose_b = g.tf32 = true;
  };
  EXPECT_EQ(ways([&](Gemm& g, ProductData&) { floats(g); }), 16u);
  EXPECT_EQ(ways([&](Gemm& g, ProductData&) { floats(g), g.tf32 = false; }), 0u);
  EXPECT_EQ(ways([&](Gemm& g, ProductData&) { floats(g), g.transpose_b = false; }), 0u);
  EXPECT_EQ(ways([](Gemm& g, ProductData&) { g.m = int64_t(1) << 22; }), 0u);
  EXPECT_EQ(ways([&](Gemm&, ProductData& d) { d.a = address(8); }), 0u);
  EXPECT_EQ(ways([&](Gemm&, ProductData& d) { d.b = address(24); }), 0u);
  EXPECT_EQ(ways([&](Gemm&, ProductData& d) { d.c = address(2); }), 0u);
  EXPECT_EQ(ways([&](Gemm&, ProductData& d) { d.bias = address(4); }), 0u);
  EXPECT_EQ(ways([&](Gemm&, ProductData& d) { d.addend = address(8); }), 0u);
  EXPECT_ERROR(tile_gemm({}, halves(128, 768, 768), {}, {}, {3}), Code::internal);
  EXPECT_ERROR(tile_gemm({}, halves(128, 768, 768), {}, {}, {16}), Code::internal);
}

// As measured on an H200.
TEST(TileGemm, TakesTilesWhereTheyAreFaster) {
  using enum TileShape;
  const auto way = [](Kind kind, int64_t m, int64_t n, int64_t k, bool adds = false) {
    Gemm gemm = halves(m, n, k);
    gemm.constant_b = true;
    gemm.beta = adds ? 1 : 0;
    return tile_gemm_way(gemm, {}, {kind}, kRoom);
  };
  EXPECT_EQ(way(Kind::gelu, 784, 768, 192), (TileGemmWay{1, m64n128k64}));
  EXPECT_EQ(way(Kind::gelu, 196, 1536, 384), (TileGemmWay{1, m64n64k64}));
  EXPECT_EQ(way(Kind::gelu, 16, 3072, 768), (TileGemmWay{2, m16n64k128}));
  EXPECT_EQ(way(Kind::hard_swish, 784, 240, 40), (TileGemmWay{1, m16n64k64}));
  EXPECT_EQ(way(Kind::hard_swish, 49, 960, 160), (TileGemmWay{1, m16n32k128}));
  EXPECT_EQ(way(Kind::none, 49, 160, 672, true), (TileGemmWay{2, m16n32k128}));
  EXPECT_EQ(way(Kind::relu, 196, 1024, 256, true), (TileGemmWay{1, m64n64k64}));
  EXPECT_EQ(way(Kind::relu, 49, 512, 2048), (TileGemmWay{4, m16n64k128}));
  EXPECT_EQ(way(Kind::none, 16, 768, 3072), (TileGemmWay{8, m16n64k128}));
  EXPECT_EQ(way(Kind::none, 784, 576, 192), (TileGemmWay{1, m64n64k64}));
  EXPECT_EQ(way(Kind::none, 196, 384, 384), (TileGemmWay{1, m64n64k64}));
  EXPECT_EQ(way(Kind::gelu, 128, 3072, 768), (TileGemmWay{1, m64n64k64}));
  EXPECT_EQ(way(Kind::none, 128, 768, 3072, true), (TileGemmWay{4, m64n64k64}));
  EXPECT_EQ(way(Kind::gelu, 197, 3072, 768), (TileGemmWay{1, m64n128k64}));
  EXPECT_EQ(way(Kind::none, 197, 2304, 768), TileGemmWay{}) << "too deep for so many tiles";
  EXPECT_EQ(way(Kind::gelu, 3136, 384, 96), TileGemmWay{}) << "too many tiles";
  EXPECT_EQ(way(Kind::gelu, 4, 1536, 384), TileGemmWay{}) << "GEMV";
}

TEST(TileGemm, TakesTilesOfFloatsToo) {
  using enum TileShape;
  const auto way = [](int64_t m, int64_t k, int64_t n, bool adds) {
    Gemm gemm{.type = Type::f32, .output = Type::f32, .m = m, .n = n, .k = k, .transpose_b = true};
    gemm.lda = gemm.ldb = k, gemm.ldc = n;
    gemm.tf32 = gemm.constant_b = true;
    gemm.beta = adds ? 1 : 0;
    return tile_gemm_way(gemm, {}, {Kind::relu}, kRoom);
  };
  EXPECT_EQ(way(3136, 64, 256, true), (TileGemmWay{1, m32n64k64}));
  EXPECT_EQ(way(784, 128, 512, true), (TileGemmWay{1, m16n64k64}));
  EXPECT_EQ(way(196, 1024, 256, false), (TileGemmWay{4, m16n64k128}));
  EXPECT_EQ(way(49, 512, 2048, true), (TileGemmWay{2, m16n64k128}));
  EXPECT_EQ(way(197, 768, 768, true), TileGemmWay{});
}

TEST(TileGemm, OnlyAnActivationPaysWhereNothingIsReadAheadOrShared) {
  const auto parts = [](Kind kind, bool constant, int most_parts) {
    Gemm gemm = halves(49, 160, 672);
    gemm.constant_b = constant;
    return tile_gemm_way(gemm, {}, {kind}, {132, most_parts, true}).parts;
  };
  EXPECT_EQ(parts(Kind::none, true, 8), 2);
  EXPECT_EQ(parts(Kind::none, false, 8), 0);
  EXPECT_EQ(parts(Kind::none, true, 1), 0);
  EXPECT_EQ(parts(Kind::silu, false, 8), 2);
  EXPECT_EQ(parts(Kind::silu, true, 1), 1);
  EXPECT_EQ(parts(Kind::silu, true, 0), 0) << "no room";
}

}  // namespace
}  // namespace encore::ops
