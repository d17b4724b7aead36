// Matrix products against loops in double, on whichever back end is built.
#include "device/blas.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <thread>
#include <vector>

#include "device/error.h"
#include "device/graph.h"
#include "device/memory.h"
#include "on_device.h"
#include "product_case.h"

namespace encore::device {
namespace {

// Keeps all that it has handed out, since captured products still use it. Nothing may be allocated in a capture, so
// there the block has to be large enough already.
class Scratch final : public Workspace {
 public:
  void* at_least(size_t bytes) override {
    if (blocks_.empty() || bytes > bytes_) blocks_.emplace_back(std::vector<char>(bytes_ = bytes));
    return blocks_.back().data();
  }

 private:
  std::deque<DeviceArray<char>> blocks_;
  size_t bytes_ = 0;
};

class BlasTest : public ::testing::Test {
 protected:
  template <class T>
  std::vector<typename Numbers<T>::Out> run(const Case<T>& problem, int offset = 0) {
    using Out = typename Numbers<T>::Out;
    DeviceArray<T> a(shifted(problem.a, offset)), b(shifted(problem.b, offset));
    DeviceArray<Out> c(shifted(problem.c, offset)), bias(shifted(problem.bias, offset));
    blas.gemm(stream, problem.gemm, a.data() + offset, b.data() + offset, c.data() + offset,
              problem.gemm.has_bias ? bias.data() + offset : nullptr, workspace);
    std::vector<Out> got = c.download(stream);
    got.erase(got.begin(), got.begin() + offset);
    return got;
  }
  template <class T>
  void check(Gemm gemm, int offset = 0) {
    const Case<T> problem(gemm);
    problem.expect_equal(run(problem, offset));
  }
  // What is added lies beside the result, so many values after an aligned address.
  template <class T>
  void check_beside(Gemm gemm, int offset = 0) {
    const Case<T> problem(gemm);
    const DeviceArray<T> a(problem.a), b(problem.b), addend(shifted(problem.c, offset)), bias(problem.bias),
        c(problem.unwritten());
    for (Blas* each : {&blas, &tuning}) {
      each->gemm(stream, problem.gemm, a.data(), b.data(), c.data(), problem.gemm.has_bias ? bias.data() : nullptr,
                 workspace, addend.data() + offset);
      problem.expect_equal(c.download(stream));
    }
    EXPECT_EQ(std::memcmp(addend.download(stream).data() + offset, problem.c.data(), problem.c.size() * sizeof(T)), 0);
  }

  Stream stream{0};
  Blas blas{0}, tuning{0, {.tune = true}};
  Scratch workspace;
};

template <class T>
class FloatBlasTest : public BlasTest {};
using Floats = ::testing::Types<float, double, Half, BFloat16>;
TYPED_TEST_SUITE(FloatBlasTest, Floats);

constexpr int64_t kSizes[][3] = {{1, 1, 1},    {7, 5, 3},     {1, 37, 64},  {33, 1, 19},
                                 {16, 16, 16}, {65, 33, 129}, {128, 96, 64}};

TYPED_TEST(FloatBlasTest, AllTransposesAndSizes) {
  for (const auto& [m, n, k] : kSizes)
    for (int t = 0; t < 4; ++t)
      this->template check<TypeParam>({.m = m, .n = n, .k = k, .transpose_a = t % 2 == 1, .transpose_b = t / 2 == 1});
}

TYPED_TEST(FloatBlasTest, RowsLieApart) {
  for (int t = 0; t < 4; ++t)
    this->template check<TypeParam>({.m = 9,
                                     .n = 12,
                                     .k = 10,
                                     .transpose_a = t % 2 == 1,
                                     .transpose_b = t / 2 == 1,
                                     .lda = 16,
                                     .ldb = 24,
                                     .ldc = 20});
}

TYPED_TEST(FloatBlasTest, BatchesAndRepeatedMatrices) {
  for (const int64_t stride_a : {0, 8 * 6 + 5})
    for (const int64_t stride_b : {0, 6 * 10})
      this->template check<TypeParam>(
          {.m = 8, .n = 10, .k = 6, .batch = 3, .stride_a = stride_a, .stride_b = stride_b, .stride_c = 8 * 10 + 7});
}

TYPED_TEST(FloatBlasTest, AlphaAndBeta) {
  for (const float beta : {0.0f, 1.0f, -0.5f})
    this->template check<TypeParam>({.m = 17, .n = 8, .k = 40, .alpha = 0.25f, .beta = beta});
  this->template check<TypeParam>({.m = 4, .n = 8, .k = 8, .alpha = 0, .beta = 2});
}

TYPED_TEST(FloatBlasTest, TheAddendLiesBesideTheResult) {
  for (const bool has_bias : {false, true})
    for (const int64_t more : {0, 3})
      for (const int offset : {0, 1})
        this->template check_beside<TypeParam>({.m = 24,
                                                .n = 16,
                                                .k = 40,
                                                .ldc = 16 + more,
                                                .batch = 3,
                                                .stride_a = 24 * 40,
                                                .stride_b = 0,
                                                .stride_c = 24 * (16 + more) + more,
                                                .beta = -0.5f,
                                                .epilogue = more ? Epilogue::relu : Epilogue::none,
                                                .has_bias = has_bias},
                                               offset);
  this->template check_beside<TypeParam>({.m = 2, .n = 520, .k = 2048, .beta = 1, .has_bias = true});
  this->template check_beside<TypeParam>({.m = 5, .n = 12, .k = 0, .beta = 2});
  this->template check_beside<TypeParam>({.m = 5, .n = 12, .k = 8});  // and is not read without beta
}

TYPED_TEST(FloatBlasTest, EpiloguesAndBias) {
  for (const Epilogue epilogue : {Epilogue::none, Epilogue::relu, Epilogue::gelu_tanh})
    for (const bool has_bias : {false, true})
      for (const int64_t batch : {1, 2})
        this->template check<TypeParam>({.m = 24,
                                         .n = 16,
                                         .k = 32,
                                         .batch = batch,
                                         .stride_a = 24 * 32,
                                         .stride_b = 0,
                                         .stride_c = 24 * 16,
                                         .epilogue = epilogue,
                                         .has_bias = has_bias});
  this->template check<TypeParam>({.m = 5, .n = 3, .k = 7, .beta = 1, .epilogue = Epilogue::relu, .has_bias = true});
}

TYPED_TEST(FloatBlasTest, WithoutDepthOnlyBetaAndBiasRemain) {
  for (const float beta : {0.0f, 2.0f})
    for (const bool has_bias : {false, true})
      for (const Epilogue epilogue : {Epilogue::none, Epilogue::relu})
        this->template check<TypeParam>({.m = 5,
                                         .n = 12,
                                         .k = 0,
                                         .batch = 2,
                                         .stride_c = 60,
                                         .beta = beta,
                                         .epilogue = epilogue,
                                         .has_bias = has_bias});
}

TYPED_TEST(FloatBlasTest, EmptyResultsAreLeftAlone) {
  this->template check<TypeParam>({.m = 0, .n = 4, .k = 3});
  this->template check<TypeParam>({.m = 4, .n = 0, .k = 3});
  this->template check<TypeParam>({.m = 4, .n = 4, .k = 3, .batch = 0});
}

TYPED_TEST(FloatBlasTest, AddressesNeedNoMoreThanTheTypesAlignment) {
  this->template check<TypeParam>({.m = 24, .n = 16, .k = 32, .has_bias = true}, 1);
  this->template check<TypeParam>({.m = 13, .n = 9, .k = 21}, 3);
}

TYPED_TEST(FloatBlasTest, TheSameBitsEveryTime) {
  const Case<TypeParam> problem(Gemm{.m = 64, .n = 48, .k = 300});
  const auto first = this->run(problem), second = this->run(problem);
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof first[0]), 0);
}

TYPED_TEST(FloatBlasTest, FewRowsOfALargeMatrix) {
  for (const bool transposed : {false, true}) {
    this->template check<TypeParam>({.m = 1, .n = 512, .k = 2048, .transpose_b = transposed, .has_bias = true});
    this->template check<TypeParam>({.m = 3, .n = 2047, .k = 513, .transpose_b = transposed});
    this->template check<TypeParam>({.m = 8, .n = 520, .k = 2048, .transpose_b = transposed, .beta = 1});
  }
}

TEST_F(BlasTest, HalvesAreSummedUpInFloats) {
  const auto sums = [&]<class T>(T) {
    const Case<T> problem({.m = 33, .n = 24, .k = 65, .transpose_b = true, .alpha = 0.5f});
    Gemm wide = problem.gemm;
    wide.output = Type::f32;
    DeviceArray<T> a(problem.a), b(problem.b);
    DeviceArray<float> c(problem.c.size());
    blas.gemm(stream, wide, a.data(), b.data(), c.data(), nullptr, workspace);
    const std::vector<float> got = c.download(stream);
    for (int64_t row = 0; row < wide.m; ++row)
      for (int64_t column = 0; column < wide.n; ++column) {
        double magnitude = 0;
        const double want = problem.exact(0, row, column, magnitude);
        EXPECT_NEAR(got[size_t(row * wide.n + column)], want, 1e-5 * magnitude);
      }
  };
  sums(Half());
  sums(BFloat16());
}

TEST_F(BlasTest, PartsAddUpToTheWhole) {
  for (int t = 0; t < 4; ++t)
    for (int parts = 2; parts <= kMostProductParts; ++parts) {
      const Case<Half> problem({.m = 20,
                                .n = 24,
                                .k = 12 * 32,
                                .transpose_a = t % 2 == 1,
                                .transpose_b = t / 2 == 1,
                                .ldc = 28,
                                .alpha = 0.5f});
      const DeviceArray<Half> a(problem.a), b(problem.b);
      const size_t count = size_t(20 * 28);
      const DeviceArray<float> c(std::vector<float>(parts * count));
      blas.gemm(stream, in_parts(problem.gemm, parts), a.data(), b.data(), c.data(), nullptr, workspace);
      const std::vector<float> made = c.download(stream);
      std::vector<Half> sums = problem.c;
      for (int64_t row = 0; row < 20; ++row)
        for (int64_t column = 0; column < 24; ++column) {
          const size_t at = problem.place(0, row, column);
          float sum = 0;
          for (int part = 0; part < parts; ++part) sum += made[part * count + at];
          sums[at] = Half(sum);
        }
      problem.expect_equal(sums);
    }
}

TEST_F(BlasTest, PartsAreOfDepthsThatCanBeShared) {
  const Gemm gemm{.type = Type::f16, .output = Type::f16, .m = 9, .n = 8, .k = 384, .lda = 384, .ldb = 8, .ldc = 8};
  const auto most = [&](auto change) {
    Gemm other = gemm;
    change(other);
    return possible_parts(other, kMostProductParts);
  };
  EXPECT_EQ(possible_parts(gemm, 5), 4);
  EXPECT_EQ(possible_parts(gemm, 3), 3);
  EXPECT_EQ(possible_parts(gemm, 0), 1);
  EXPECT_EQ(most([](Gemm& g) { g.k = 64; }), 2);
  EXPECT_EQ(most([](Gemm& g) { g.k = 96; }), 3);
  EXPECT_EQ(most([](Gemm& g) { g.k = 160; }), 1);
  EXPECT_EQ(most([](Gemm& g) { g.k = 0; }), 1);
  EXPECT_EQ(most([](Gemm& g) { g.m = 8; }), 1);
  EXPECT_EQ(most([](Gemm& g) { g.beta = 1; }), 1);
  EXPECT_EQ(most([](Gemm& g) { g.batch = 2; }), 1);
  EXPECT_EQ(most([](Gemm& g) { g.epilogue = Epilogue::relu; }), 1);
  EXPECT_EQ(most([](Gemm& g) { g.type = g.output = Type::f64; }), 1);
}

TEST_F(BlasTest, ThereAreAsManyPartsEachTime) {
  const Case<Half> problem({.m = 128, .n = 64, .k = 1024});
  const DeviceArray<Half> a(problem.a), b(problem.b);
  for (Blas* each : {&blas, &tuning}) {
    const auto parts = [&] { return each->parts_of(stream, problem.gemm, a.data(), b.data(), nullptr, workspace); };
    const int first = parts();
    EXPECT_GE(first, 1);
    EXPECT_LE(first, kMostProductParts);
    EXPECT_EQ(parts(), first);
  }
}

TEST_F(BlasTest, Tf32MayRoundTheOperandsOnly) {
  for (const auto& [m, n, k] : kSizes) check<float>({.m = m, .n = n, .k = k, .tf32 = true});
}

TEST_F(BlasTest, WithoutTf32FloatsKeepTheirBits) {
  // 1 + 2^-20 is 1 in TF32.
  Case<float> problem(Gemm{.m = 16, .n = 16, .k = 16});
  for (float& value : problem.a) value = 1 + 0x1p-20f;
  for (float& value : problem.b) value = 1;
  for (const float value : run(problem)) EXPECT_EQ(value, 16 + 0x1p-16f);
}

TEST_F(BlasTest, SmallIntegers) {
  for (int t = 0; t < 4; ++t) {
    const Gemm gemm{.m = 16, .n = 32, .k = 64, .transpose_a = t % 2 == 1, .transpose_b = t / 2 == 1};
    check<int8_t>(gemm);
    if (!on_cuda()) check<uint8_t>(gemm);
  }
  check<int8_t>({.m = 8,
                 .n = 16,
                 .k = 32,
                 .transpose_b = true,
                 .batch = 3,
                 .stride_a = 8 * 32,
                 .stride_b = 16 * 32,
                 .stride_c = 8 * 16});
  check<int8_t>({.m = 8, .n = 16, .k = 32, .transpose_b = true, .alpha = 2, .beta = -3});
  check<int8_t>({.m = 8, .n = 16, .k = 0, .transpose_b = true, .beta = 1});
}

TEST_F(BlasTest, SmallIntegersOfAwkwardSizeWorkOrSayWhatIsWanted) {
  try {
    check<int8_t>({.m = 3, .n = 5, .k = 7});
  } catch (const Error& error) {
    ASSERT_TRUE(on_cuda()) << error.what();
    EXPECT_EQ(error.code(), Code::not_supported);
    EXPECT_NE(std::string(error.what()).find("multiples of 4"), std::string::npos) << error.what();
  }
}

TEST_F(BlasTest, RefusesWhatNoBackEndDoes) {
  const auto code_of = [&](Gemm gemm) {
    try {
      blas.gemm(stream, gemm, nullptr, nullptr, nullptr, nullptr, workspace);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("m=4 n=4 k=4"), std::string::npos) << error.what();
      return error.code();
    }
    ADD_FAILURE() << "accepted " << describe(gemm);
    return Code::internal;
  };
  const Gemm good{.m = 4, .n = 4, .k = 4, .lda = 4, .ldb = 4, .ldc = 4};
  const auto with = [&](auto change) {
    Gemm gemm = good;
    change(gemm);
    return code_of(gemm);
  };
  EXPECT_EQ(with([](Gemm& g) { g.output = Type::f64; }), Code::not_supported);
  EXPECT_EQ(with([](Gemm& g) { g.type = g.output = Type::i64; }), Code::not_supported);
  EXPECT_EQ(with([](Gemm& g) { g.lda = 3; }), Code::invalid_input);
  EXPECT_EQ(with([](Gemm& g) { g.ldc = 3; }), Code::invalid_input);
  EXPECT_EQ(with([](Gemm& g) { g.batch = 2; }), Code::invalid_input);
  EXPECT_EQ(with([](Gemm& g) { g.batch = -1; }), Code::invalid_input);
  EXPECT_EQ(with([](Gemm& g) { g.stride_a = -4; }), Code::invalid_input);
  const auto integers = [](Gemm& g) { g.type = Type::i8, g.output = Type::i32; };
  EXPECT_EQ(with([&](Gemm& g) { integers(g), g.has_bias = true; }), Code::not_supported);
  EXPECT_EQ(with([&](Gemm& g) { integers(g), g.alpha = 0.5f; }), Code::not_supported);
}

TEST_F(BlasTest, ReplaysWithNewContents) {
  const Gemm gemm{.m = 48, .n = 40, .k = 56, .epilogue = Epilogue::relu, .has_bias = true};
  const Case<float> first(gemm, 1), second(gemm, 100);
  const auto eager = run(first);  // also warms up
  DeviceArray<float> a(first.a), b(first.b), c(first.c), bias(first.bias);
  begin_capture(stream, CaptureMode::thread_local_);
  blas.gemm(stream, first.gemm, a.data(), b.data(), c.data(), bias.data(), workspace);
  const GraphExec exec = end_capture(stream).instantiate();
  exec.launch(stream);
  EXPECT_EQ(c.download(stream), eager);
  a.upload(stream, second.a), b.upload(stream, second.b), bias.upload(stream, second.bias);
  exec.launch(stream);
  second.expect_equal(c.download(stream));
}

TEST_F(BlasTest, TuningTimesSeveralAlgorithmsAndChangesNoResult) {
  const Case<Half> plain({.m = 256, .n = 256, .k = 256}), added({.m = 64, .n = 48, .k = 96, .beta = 2}),
      few({.m = 2, .n = 256, .k = 96, .beta = 2});
  const auto product = [&](const Case<Half>& problem) {
    DeviceArray<Half> a(problem.a), b(problem.b), c(problem.c);
    tuning.gemm(stream, problem.gemm, a.data(), b.data(), c.data(), nullptr, workspace);
    problem.expect_equal(c.download(stream));
  };
  for (int i = 0; i < 2; ++i) {
    product(plain);
    product(added);
    product(few);
  }
  const std::vector<TunedProduct> tuned = tuning.tuned();
  ASSERT_EQ(tuned.size(), 3u) << "once for each problem";
  EXPECT_TRUE(blas.tuned().empty());
  if (!on_cuda()) return;  // Eigen has one candidate
  for (const TunedProduct& one : tuned) {
    EXPECT_GT(one.candidates, 1) << one.problem;
    EXPECT_GT(one.chosen_us, 0) << one.problem;
  }
}

TEST_F(BlasTest, TuningEndsWhenItsTimeIsUp) {
  if (!on_cuda()) return;  // Eigen has one candidate
  Blas hasty(0, {.tune = true, .max_tuning_ms = 1}), thorough(0, {.tune = true});
  const Gemm large{.m = 4096, .n = 4096, .k = 4096, .lda = 4096, .ldb = 4096, .ldc = 4096};  // some milliseconds each
  DeviceArray<float> a(size_t{4096} * 4096), b(size_t{4096} * 4096), c(size_t{4096} * 4096);
  for (Blas* each : {&hasty, &thorough}) each->gemm(stream, large, a.data(), b.data(), c.data(), nullptr, workspace);
  EXPECT_EQ(hasty.tuned().at(0).candidates, 1);
  EXPECT_GT(thorough.tuned().at(0).candidates, 1);
}

TEST_F(BlasTest, NothingIsTunedInACapture) {
  const Case<float> problem({.m = 32, .n = 32, .k = 32});
  DeviceArray<float> a(problem.a), b(problem.b), c(problem.c);
  workspace.at_least(size_t{64} << 20);
  begin_capture(stream, CaptureMode::thread_local_);
  tuning.gemm(stream, problem.gemm, a.data(), b.data(), c.data(), nullptr, workspace);
  end_capture(stream).instantiate().launch(stream);
  problem.expect_equal(c.download(stream));
  EXPECT_TRUE(tuning.tuned().empty());
}

TEST_F(BlasTest, ThreadsShareAlgorithmsButNotBiases) {
  const auto work = [&](uint32_t seed) {
    const Current current(0);
    const Stream own(0);
    const Case<float> problem(Gemm{.m = 32, .n = 32, .k = 32, .has_bias = true}, seed);
    DeviceArray<float> a(problem.a), b(problem.b), c(problem.c), bias(problem.bias);
    Scratch scratch;
    for (int i = 0; i < 50; ++i) {
      c.upload(own, problem.c);
      blas.gemm(own, problem.gemm, a.data(), b.data(), c.data(), bias.data(), scratch);
      problem.expect_equal(c.download(own));
    }
  };
  std::thread other(work, 7);
  work(70);
  other.join();
}

}  // namespace
}  // namespace encore::device
