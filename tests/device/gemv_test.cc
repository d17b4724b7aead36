// Products of few rows by the kernels made for them, whatever else the back end would take.
#include "device/gemv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "device/error.h"
#include "device/graph.h"
#include "on_device.h"
#include "product_case.h"

namespace encore::device {
namespace {

constexpr int kMultiprocessors = 132;

template <class T>
class FewRowsTest : public ::testing::Test {
 protected:
  // a, b and c begin so many values after an aligned address.
  std::vector<T> run(const Case<T>& problem, GemvWay way, int offset = 0) {
    DeviceArray<T> a(shifted(problem.a, offset)), b(shifted(problem.b, offset));
    DeviceArray<T> c(shifted(problem.c, offset)), bias(shifted(problem.bias, offset));
    T* const to = c.data() + offset;
    gemv(stream, problem.gemm, a.data() + offset, b.data() + offset, to, to,
         problem.gemm.has_bias ? bias.data() + offset : nullptr, way);
    std::vector<T> got = c.download(stream);
    got.erase(got.begin(), got.begin() + offset);
    return got;
  }
  // In each way that there is.
  void check(Gemm gemm, int offset = 0) {
    const Case<T> problem(gemm);
    const auto ways = gemv_ways(problem.gemm, size_t(offset) * sizeof(T) % 16 == 0, kMultiprocessors);
    EXPECT_EQ(ways.empty(), gemm.m > 4 && (!kHalf || gemm.transpose_b || gemm.n % 8 || gemm.k % 8));
    for (const GemvWay& way : ways) {
      SCOPED_TRACE(text(way.tiles ? "tiles " : "threads ", way.width));
      problem.expect_equal(run(problem, way, offset));
    }
  }

  static constexpr bool kHalf = sizeof(T) == 2;
  Stream stream{0};
};
using Types = ::testing::Types<float, Half, BFloat16>;
TYPED_TEST_SUITE(FewRowsTest, Types);

TYPED_TEST(FewRowsTest, RowsAndSizes) {
  constexpr int64_t kSizes[][2] = {{8, 8}, {8, 1}, {9, 7}, {64, 256}, {200, 520}, {131, 333}, {1032, 40}};
  for (const auto& [n, k] : kSizes)
    for (const bool transposed : {false, true})
      for (int64_t m = 1; m <= kMostGemvRows; ++m) this->check({.m = m, .n = n, .k = k, .transpose_b = transposed});
}

TYPED_TEST(FewRowsTest, DeeperThanABlockReadsAtOnce) {
  for (const bool transposed : {false, true}) {
    this->check({.m = 1, .n = 16, .k = 16384, .transpose_b = transposed});
    this->check({.m = 5, .n = 24, .k = 4104, .transpose_b = transposed});
    this->check({.m = 2, .n = 19, .k = 9001, .transpose_b = transposed});
  }
}

TYPED_TEST(FewRowsTest, AnyAddress) {
  for (const bool transposed : {false, true})
    for (const int offset : {1, 2, 4})
      for (const int64_t n : {64, 77})
        this->check({.m = 2, .n = n, .k = 96, .transpose_b = transposed, .has_bias = true}, offset);
}

TYPED_TEST(FewRowsTest, RowsLieApart) {
  for (const bool transposed : {false, true})
    for (const int64_t more : {8, 3})
      this->check({.m = 3,
                   .n = 48,
                   .k = 80,
                   .transpose_b = transposed,
                   .lda = 80 + more,
                   .ldb = (transposed ? 80 : 48) + more,
                   .ldc = 48 + more});
}

TYPED_TEST(FewRowsTest, ScalesBiasAndEpilogues) {
  for (const bool transposed : {false, true})
    for (const float beta : {0.0f, -0.5f})
      for (const bool has_bias : {false, true})
        for (const Epilogue epilogue : {Epilogue::none, Epilogue::relu, Epilogue::gelu_tanh})
          this->check({.m = 2,
                       .n = 43,
                       .k = 64,
                       .transpose_b = transposed,
                       .alpha = 0.25f,
                       .beta = beta,
                       .epilogue = epilogue,
                       .has_bias = has_bias});
}

TYPED_TEST(FewRowsTest, AColumnAsTheOnlyRow) { this->check({.m = 1, .n = 32, .k = 56, .transpose_a = true}); }

TYPED_TEST(FewRowsTest, WhatIsNotFiniteStaysInItsRowAndColumn) {
  using T = TypeParam;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const bool transposed : {false, true})
    for (const int64_t k : {int64_t{64}, int64_t{61}}) {
      const Gemm gemm{.m = 2, .n = 40, .k = k, .transpose_b = transposed};
      Case<T> problem(gemm);
      const auto b = [&](int64_t at, int64_t column) -> T& {
        return problem.b[size_t(transposed ? column * k + at : at * gemm.n + column)];
      };
      b(k - 1, 5) = T(infinity), b(0, 39) = T(std::nanf(""));
      problem.a[size_t(k - 1)] = T(2.f), problem.a[size_t(2 * k - 1)] = T(0.f);
      for (const GemvWay& way : gemv_ways(problem.gemm, true, kMultiprocessors)) {
        const std::vector<T> got = this->run(problem, way);
        for (int64_t row = 0; row < 2; ++row)
          for (int64_t column = 0; column < gemm.n; ++column) {
            const float value = float(got[size_t(row * gemm.n + column)]);
            if (column == 39 || (column == 5 && row == 1))
              EXPECT_TRUE(std::isnan(value)) << row << ", " << column;
            else if (column == 5)
              EXPECT_EQ(value, infinity);
            else
              EXPECT_TRUE(std::isfinite(value)) << row << ", " << column;
          }
      }
    }
}

TYPED_TEST(FewRowsTest, TheSumMayGoElsewhere) {
  const Case<TypeParam> problem(Gemm{.m = 2, .n = 64, .k = 32, .beta = 1});
  DeviceArray<TypeParam> a(problem.a), b(problem.b), c(problem.c), beside(problem.c.size());
  for (int i = 0; i < 2; ++i)
    gemv(this->stream, problem.gemm, a.data(), b.data(), c.data(), beside.data(), nullptr, {.width = 4});
  problem.expect_equal(beside.download(this->stream));
}

TYPED_TEST(FewRowsTest, ReplaysTheSameBits) {
  const Case<TypeParam> problem(Gemm{.m = 1, .n = 64, .k = 1000, .has_bias = true});
  const std::vector<TypeParam> eager = this->run(problem, {.width = 2});
  DeviceArray<TypeParam> a(problem.a), b(problem.b), c(problem.c), bias(problem.bias);
  begin_capture(this->stream, CaptureMode::thread_local_);
  gemv(this->stream, problem.gemm, a.data(), b.data(), c.data(), c.data(), bias.data(), {.width = 2});
  end_capture(this->stream).instantiate().launch(this->stream);
  const std::vector<TypeParam> got = c.download(this->stream);
  EXPECT_EQ(std::memcmp(got.data(), eager.data(), got.size() * sizeof got[0]), 0);
}

// Rows normed on their way, and columns of x and of y gated.
template <class T>
class NormedRowsTest : public ::testing::Test {
 protected:
  struct How {
    bool is_normed = false, skips = false, is_gated = false;
    int sum_offset = 0;
  };

  void check(Gemm gemm, How how) {
    gemm.constant_b = true;
    const Case<T> problem(gemm);
    const std::vector<T> skip = random_values<T>(size_t(gemm.k), 11), gamma = random_values<T>(size_t(gemm.k), 12);
    DeviceArray<T> a(problem.a), b(problem.b), bias(problem.bias), skips(skip), gammas(gamma);
    const size_t columns = size_t(how.is_gated ? gemm.n / 2 : gemm.n);
    std::vector<T> values = problem.a;
    if (how.skips)
      for (size_t i = 0; i < values.size(); ++i) values[i] = T(float(values[i]) + float(skip[i]));
    GemvMore more{.epsilon = 0.25f, .gated = how.is_gated};
    if (how.is_normed) more.gamma = gammas.data();
    if (how.skips) more.skip = skips.data();
    int ways = 0;
    for (const GemvWay& way : gemv_ways(problem.gemm, true, kMultiprocessors)) {
      if (how.is_normed && way.tiles) continue;
      SCOPED_TRACE(text(describe(problem.gemm), way.tiles ? " tiles " : " threads ", way.width));
      DeviceArray<T> c(size_t(gemm.m) * columns), sum(size_t(gemm.k + how.sum_offset));
      if (how.skips) more.sum = sum.data() + how.sum_offset;
      gemv(stream, problem.gemm, a.data(), b.data(), nullptr, c.data(), gemm.has_bias ? bias.data() : nullptr, way,
           more);
      const std::vector<T> got = c.download(stream), kept = sum.download(stream);
      for (size_t i = 0; i < got.size(); ++i)
        expect_near(float(got[i]), expected(problem, how, skip, gamma, i / columns, i % columns));
      for (size_t i = 0; how.skips && i < values.size(); ++i)
        EXPECT_EQ(float(kept[i + size_t(how.sum_offset)]), float(values[i])) << i;
      ++ways;
    }
    EXPECT_GT(ways, 0);
  }

 private:
  static void expect_near(float got, double want) { EXPECT_NEAR(got, want, 1e-4 + 2 * kUnit<T> * std::abs(want)); }
  static double expected(const Case<T>& problem, const How& how, const std::vector<T>& skip,
                         const std::vector<T>& gamma, size_t row, size_t column) {
    const size_t depth = size_t(problem.gemm.k), width = size_t(problem.gemm.n);
    const auto product = [&](size_t of) {
      double sum = 0, squares = 0;
      for (size_t k = 0; k < depth; ++k) {
        double value = number(problem.a[row * depth + k]);
        if (how.skips) value += number(skip[k]);
        squares += value * value;
        sum += value * (how.is_normed ? number(gamma[k]) : 1) * number(problem.b[k * width + of]);
      }
      if (how.is_normed) sum /= std::sqrt(squares / double(depth) + 0.25);
      return sum + (problem.gemm.has_bias ? number(problem.bias[of]) : 0);
    };
    if (!how.is_gated) return product(column);
    const size_t of_x = column / kGateColumns * 2 * kGateColumns + column % kGateColumns;
    const double x = product(of_x);
    return x / (1 + std::exp(-x)) * product(of_x + kGateColumns);
  }

  Stream stream{0};
};
using Halves = ::testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(NormedRowsTest, Halves);

TYPED_TEST(NormedRowsTest, SizesAndSkips) {
  constexpr int64_t kSizes[][2] = {{16, 8}, {64, 256}, {200, 520}, {1032, 40}, {40, 12288}};
  for (const auto& [n, k] : kSizes)
    for (const bool skips : {false, true})
      for (const bool has_bias : {false, true})
        this->check({.m = 1, .n = n, .k = k, .has_bias = has_bias}, {.is_normed = true, .skips = skips});
}

TYPED_TEST(NormedRowsTest, TheSumGoesAnywhere) {
  this->check({.m = 1, .n = 64, .k = 256}, {.is_normed = true, .skips = true, .sum_offset = 1});
}

TYPED_TEST(NormedRowsTest, Gates) {
  constexpr int64_t kSizes[][2] = {{16, 8}, {48, 96}, {512, 264}};
  for (const auto& [n, k] : kSizes) {
    for (const bool skips : {false, true})
      this->check({.m = 1, .n = n, .k = k}, {.is_normed = true, .skips = skips, .is_gated = true});
    for (const int64_t m : {1, 2, 3, 8}) this->check({.m = m, .n = n, .k = k}, {.is_gated = true});
  }
}

TEST(FewRows, DoMoreOnlyWhereTheyCan) {
  const Gemm good{.type = Type::f16,
                  .output = Type::f16,
                  .m = 1,
                  .n = 2048,
                  .k = 2048,
                  .lda = 2048,
                  .ldb = 2048,
                  .ldc = 2048,
                  .constant_b = true};
  const int gamma = 0;
  const auto does = [&](const GemvMore& more, auto change, bool aligned = true) {
    Gemm gemm = good;
    change(gemm);
    return gemv_way(gemm, aligned, kMultiprocessors, more) != GemvWay{};
  };
  const GemvMore normed{.gamma = &gamma}, gated{.gated = true};
  for (const GemvMore& more : {normed, gated}) {
    EXPECT_TRUE(does(more, [](Gemm&) {}));
    EXPECT_FALSE(does(more, [](Gemm& g) { g.transpose_b = true; }));
    EXPECT_FALSE(does(more, [](Gemm& g) { g.type = g.output = Type::f32; }));
  }
  EXPECT_FALSE(does(
      normed, [](Gemm&) {}, false));
  EXPECT_FALSE(does(normed, [](Gemm& g) { g.m = 2; }));
  EXPECT_FALSE(does(normed, [](Gemm& g) { g.k = g.lda = 12296; }));
  EXPECT_TRUE(does(gated, [](Gemm& g) { g.m = 8; }));
  EXPECT_FALSE(does(gated, [](Gemm& g) { g.n = g.ldb = g.ldc = 2056; }));
  EXPECT_FALSE(does(gated, [](Gemm& g) { g.has_bias = true; }));
  EXPECT_ERROR(gemv({}, good, nullptr, nullptr, nullptr, nullptr, nullptr, {.width = 1}, gated), Code::internal);
}

TEST(FewRows, LeavesOtherProductsAlone) {
  const Gemm good{
      .type = Type::f16, .output = Type::f16, .m = 1, .n = 2048, .k = 2048, .lda = 2048, .ldb = 2048, .ldc = 2048};
  const auto ways = [&](auto change) {
    Gemm gemm = good;
    change(gemm);
    return gemv_ways(gemm, true, kMultiprocessors).size();
  };
  EXPECT_EQ(ways([](Gemm&) {}), 6u);
  EXPECT_EQ(ways([](Gemm& g) { g.m = 8; }), 3u);
  EXPECT_EQ(ways([](Gemm& g) { g.m = 9; }), 0u);
  EXPECT_EQ(ways([](Gemm& g) { g.n = 7; }), 0u);
  EXPECT_EQ(ways([](Gemm& g) { g.k = 0; }), 0u);
  EXPECT_EQ(ways([](Gemm& g) { g.batch = 2; }), 0u);
  EXPECT_EQ(ways([](Gemm& g) { g.type = g.output = Type::f64; }), 0u);
  EXPECT_EQ(ways([](Gemm& g) { g.type = Type::i8, g.output = Type::i32; }), 0u);
  EXPECT_EQ(ways([](Gemm& g) { g.m = 2, g.transpose_a = true; }), 0u);
  EXPECT_ERROR(gemv({}, good, nullptr, nullptr, nullptr, nullptr, nullptr, {.width = 3}), Code::internal);
}

TEST(FewRows, OneIsMadeHereWhereItIsShortToo) {
  const auto is_made = [](Type type, int64_t m, int64_t n, int64_t k, const GemvMore& more = {}) {
    const Gemm gemm{.type = type, .output = type, .m = m, .n = n, .k = k, .lda = k, .ldb = n, .ldc = n};
    return gemv_way(gemm, true, kMultiprocessors, more) != GemvWay{};
  };
  EXPECT_TRUE(is_made(Type::f16, 1, 1000, 768));
  EXPECT_TRUE(is_made(Type::f32, 1, 1000, 768));
  EXPECT_TRUE(is_made(Type::f32, 4, 2048, 2048));
  EXPECT_FALSE(is_made(Type::f32, 8, 2048, 2048));
  EXPECT_FALSE(is_made(Type::f16, 2, 1000, 768));
  EXPECT_FALSE(is_made(Type::f16, 1, 128, 768));
  EXPECT_FALSE(is_made(Type::f16, 1, 1000, 64));
  EXPECT_FALSE(is_made(Type::f16, 1, 1024, 768, {.gated = true}));
}

TEST(FewRows, NarrowProductsHaveNarrowBlocks) {
  const auto way = [](Gemm gemm, bool aligned = true) {
    gemm.type = gemm.output = Type::f16, gemm.k = 2048;
    gemm.lda = 2048, gemm.ldb = gemm.transpose_b ? 2048 : gemm.n, gemm.ldc = gemm.n;
    return gemv_way(gemm, aligned, kMultiprocessors);
  };
  for (const int64_t m : {1, 4}) {
    const bool tiles = m > 1;
    EXPECT_EQ(way({.m = m, .n = 512}), (GemvWay{tiles, 2}));
    EXPECT_EQ(way({.m = m, .n = 2048}), (GemvWay{tiles, tiles ? 2 : 4}));
    EXPECT_EQ(way({.m = m, .n = 8192}), (GemvWay{tiles, tiles ? 4 : 8}));
    EXPECT_EQ(way({.m = m, .n = 128256}), (GemvWay{tiles, 8}));
    EXPECT_EQ(way({.m = m, .n = 8192}, false), (GemvWay{false, 4}));
    EXPECT_EQ(way({.m = m, .n = 2048, .transpose_b = true}), (GemvWay{false, 1}));
    EXPECT_EQ(way({.m = m, .n = 128256, .transpose_b = true}), (GemvWay{false, 4}));
  }
  EXPECT_EQ(way({.m = 1, .n = 64}), GemvWay{}) << "too little to gain";
}

}  // namespace
}  // namespace encore::device
