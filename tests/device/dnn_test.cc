// Convolutions against loops in double where there is a cuDNN; on the virtual GPU, that it says it has none.
#include "device/dnn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numbers>
#include <optional>
#include <random>
#include <type_traits>
#include <utility>

#include "device/capture_stream.h"
#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"
#include "device/tuning_cache.h"
#include "on_device.h"

namespace encore::device {
namespace {

#ifdef ENCORE_VIRTUAL

TEST(DnnTest, TheVirtualGpuHasNoneAndSaysSo) {
  Dnn dnn(0);
  std::string why;
  EXPECT_FALSE(dnn.available(&why));
  EXPECT_NE(why.find("cuDNN"), std::string::npos) << why;
  const Stream stream(0);
  const Convolution problem{.x = {1, 1, 4},
                            .w = {1, 1, 3},
                            .y = {1, 1, 2},
                            .pads_begin = {0},
                            .pads_end = {0},
                            .strides = {1},
                            .dilations = {1}};
  EXPECT_ERROR(dnn.prepare(stream, problem), Code::library_missing);
  EXPECT_ERROR(dnn.run(stream, problem, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr), Code::library_missing);
}

TEST(DnnTest, AbsenceIsToldOnce) {
  std::vector<std::string> said;
  Dnn dnn(0, {.warn = [&](const std::string& message) { said.push_back(message); }});
  EXPECT_TRUE(said.empty());
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(dnn.available());
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("virtual GPU"), std::string::npos) << said[0];

  Dnn unwanted(0, {.wanted = false, .warn = [&](const std::string& message) { said.push_back(message); }});
  EXPECT_FALSE(unwanted.available());
  EXPECT_NE(said.back().find(kDnnSwitchedOff), std::string::npos) << said.back();
}

#else

using Dims = std::vector<int64_t>;

int64_t volume(const Dims& dims) {
  int64_t all = 1;
  for (const int64_t size : dims) all *= size;
  return all;
}

template <class T>
double number(T value) {
  if constexpr (std::is_arithmetic_v<T>)
    return double(value);
  else
    return double(float(value));
}

template <class T>
std::vector<T> random_values(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) value = T((float(engine() >> 8) / float(1 << 23)) - 1.0f);
  return values;
}

// The problem with y worked out from the rest, as ONNX does; `extra` is output_padding.
Convolution sized(Convolution p, int64_t extra = 0) {
  const size_t spatial = p.x.size() - 2;
  for (Dims* pads : {&p.pads_begin, &p.pads_end})
    if (pads->empty()) pads->assign(spatial, 0);
  for (Dims* ones : {&p.strides, &p.dilations})
    if (ones->empty()) ones->assign(spatial, 1);
  p.y = {p.x[0], p.transposed ? p.w[1] * p.groups : p.w[0]};
  for (size_t i = 0; i < spatial; ++i) {
    const int64_t reach = p.dilations[i] * (p.w[i + 2] - 1) + 1, pads = p.pads_begin[i] + p.pads_end[i],
                  size = p.x[i + 2];
    p.y.push_back(p.transposed ? (size - 1) * p.strides[i] + reach - pads + extra
                               : (size + pads - reach) / p.strides[i] + 1);
  }
  return p;
}

// [a, b, spatial…] as channels-last memory has it, [a, spatial…, b]; or back.
template <class T>
std::vector<T> turned(const std::vector<T>& values, const Dims& dims, bool back = false) {
  const int64_t inner = volume(dims) / std::max<int64_t>(dims[0] * dims[1], 1);
  std::vector<T> out(values.size());
  for (int64_t a = 0; a < dims[0]; ++a)
    for (int64_t b = 0; b < dims[1]; ++b)
      for (int64_t i = 0; i < inner; ++i) {
        const auto first = size_t((a * dims[1] + b) * inner + i), last = size_t((a * inner + i) * dims[1] + b);
        out[back ? first : last] = values[back ? last : first];
      }
  return out;
}

template <class T>
struct Case {
  Convolution problem;
  std::vector<T> x, w, bias, residual;

  explicit Case(Convolution p, uint32_t seed = 1) : problem(std::move(p)) {
    problem.type = kTypeOf<T>;
    x = random_values<T>(volume(problem.x), seed);
    w = random_values<T>(volume(problem.w), seed + 1);
    bias = random_values<T>(problem.y[1], seed + 2);
    residual = random_values<T>(volume(problem.y), seed + 3);
  }

  // Sums in double, and what rounding may add up to.
  void sums(std::vector<double>& sum, std::vector<double>& magnitude) const {
    const Convolution& p = problem;
    const auto three = [](const Dims& values, size_t skip, int64_t neutral) {
      Dims padded(3 - (values.size() - skip), neutral);
      padded.insert(padded.end(), values.begin() + std::ptrdiff_t(skip), values.end());
      return padded;
    };
    // A transposed convolution is the plain one with the roles of its ends swapped.
    const Dims big = three(p.transposed ? p.y : p.x, 2, 1), small = three(p.transposed ? p.x : p.y, 2, 1),
               window = three(p.w, 2, 1);
    const Dims pads = three(p.pads_begin, 0, 0), strides = three(p.strides, 0, 1), dilations = three(p.dilations, 0, 1);
    const int64_t big_channels = p.w[1], small_channels = p.w[0] / p.groups;  // of one group
    sum.assign(size_t(volume(p.y)), 0), magnitude.assign(size_t(volume(p.y)), 0);
    for (int64_t n = 0; n < p.x[0]; ++n)
      for (int64_t g = 0; g < p.groups; ++g)
        for (int64_t s = 0; s < small_channels; ++s)
          for (int64_t b = 0; b < big_channels; ++b)
            for (int64_t at = 0; at < volume(small); ++at)
              for (int64_t tap = 0; tap < volume(window); ++tap) {
                const int64_t out[3] = {at / (small[1] * small[2]), at / small[2] % small[1], at % small[2]};
                const int64_t in_window[3] = {tap / (window[1] * window[2]), tap / window[2] % window[1],
                                              tap % window[2]};
                int64_t flat = 0;
                bool inside = true;
                for (int d = 0; d < 3; ++d) {
                  const int64_t position =
                      out[d] * strides[size_t(d)] - pads[size_t(d)] + in_window[d] * dilations[size_t(d)];
                  inside = inside && position >= 0 && position < big[size_t(d)];
                  flat = flat * big[size_t(d)] + position;
                }
                if (!inside) continue;
                const size_t big_at = size_t(((n * p.groups + g) * big_channels + b) * volume(big) + flat);
                const size_t small_at = size_t(((n * p.groups + g) * small_channels + s) * volume(small) + at);
                const size_t w_at = size_t(((g * small_channels + s) * big_channels + b) * volume(window) + tap);
                const double term = number(x[p.transposed ? small_at : big_at]) * number(w[w_at]);
                sum[p.transposed ? big_at : small_at] += term;
                magnitude[p.transposed ? big_at : small_at] += std::abs(term);
              }
  }

  double curved(double x) const {
    switch (problem.curve) {
      case Convolution::Curve::relu: return std::max(x, 0.0);
      case Convolution::Curve::silu: return x / (1 + std::exp(-x));
      case Convolution::Curve::gelu: return x / 2 * (1 + std::erf(x / std::sqrt(2)));
      case Convolution::Curve::gelu_tanh:
        return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
      default: return x;
    }
  }

  void expect_equal(const std::vector<T>& got, bool fused) const {
    std::vector<double> sum, magnitude;
    sums(sum, magnitude);
    const double inner = std::is_same_v<T, double> ? 0x1p-50 : problem.tf32 ? 0x1p-10 : 0x1p-20;
    const double unit = std::is_same_v<T, Half> ? 0x1p-11 : std::is_same_v<T, BFloat16> ? 0x1p-8 : 0;
    const int64_t plane = volume(problem.y) / problem.y[0] / problem.y[1];
    int wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      double want = sum[i], slack = inner * magnitude[i];
      if (fused && problem.has_bias) want += number(bias[size_t(int64_t(i) / plane % problem.y[1])]);
      if (fused && problem.has_residual) want += number(residual[i]);
      slack += 2 * unit * (std::abs(want) + magnitude[i] / 8) + inner;
      if (fused && problem.curve > Convolution::Curve::relu) slack = 1.13 * slack + 0x1p-15 * (1 + std::abs(want));
      if (fused) want = curved(want);
      const double have = number(got[i]);
      if (!(std::abs(have - want) <= slack) && ++wrong <= 3)
        ADD_FAILURE() << describe(problem) << " [" << i << "] is " << have << ", not " << want;
    }
    EXPECT_EQ(wrong, 0);
  }
};

class DnnTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    ASSERT_TRUE(dnn.available(&why)) << why;
  }
  template <class T>
  void check(const Convolution& problem) {
    check<T>(dnn, problem);
  }
  // What was prepared, and y as cuDNN leaves it.
  template <class T>
  std::pair<Dnn::Prepared, std::vector<T> > check(Dnn& dnn, const Convolution& problem) {
    const Case<T> c(problem);
    const Convolution& p = c.problem;
    const auto stored = [&](const std::vector<T>& values, const Dims& dims) {
      return p.channels_last ? turned(values, dims) : values;
    };
    const std::optional<Dnn::Prepared> prepared = dnn.prepare(stream, p);
    EXPECT_TRUE(prepared) << describe(p);
    if (!prepared) return {};
    DeviceArray<T> x(stored(c.x, p.x)), w(stored(c.w, p.w)), bias(c.bias), residual(stored(c.residual, p.y)),
        y(c.residual.size());
    DeviceArray<char> workspace(prepared->workspace_bytes);
    dnn.run(stream, p, x.data(), w.data(), bias.data(), residual.data(), y.data(), workspace.data());
    const std::vector<T> got = y.download(stream);
    c.expect_equal(p.channels_last ? turned(got, p.y, true) : got, prepared->fused);
    if (!p.is_alone()) std::cout << (prepared->fused ? "  as one: " : "  alone: ") << describe(p) << "\n";
    return {*prepared, got};
  }
  template <class T>
  void check_all_shapes(bool channels_last = false) {
    const auto check_one = [&](Convolution problem) {
      problem.channels_last = channels_last;
      check<T>(problem);
    };
    check_one(sized({.x = {2, 8, 15, 17}, .w = {16, 8, 3, 3}, .pads_begin = {1, 1}, .pads_end = {1, 1}}));
    check_one(
        sized({.x = {1, 3, 20, 20}, .w = {5, 3, 5, 3}, .pads_begin = {2, 1}, .pads_end = {2, 1}, .strides = {2, 3}}));
    check_one(
        sized({.x = {2, 4, 18, 18}, .w = {4, 4, 3, 3}, .pads_begin = {2, 2}, .pads_end = {2, 2}, .dilations = {2, 2}}));
    check_one(sized({.x = {2, 8, 10, 10}, .w = {12, 2, 3, 3}, .pads_begin = {1, 1}, .pads_end = {1, 1}, .groups = 4}));
    check_one(
        sized({.x = {2, 16, 12, 12}, .w = {16, 1, 3, 3}, .pads_begin = {1, 1}, .pads_end = {1, 1}, .groups = 16}));
    check_one(sized({.x = {1, 4, 9, 9}, .w = {8, 4, 1, 1}}));
    check_one(sized({.x = {2, 6, 33}, .w = {10, 6, 5}, .pads_begin = {2}, .pads_end = {2}, .strides = {2}}));
    check_one(sized({.x = {1, 4, 6, 7, 8}, .w = {8, 4, 3, 3, 3}, .pads_begin = {1, 1, 1}, .pads_end = {1, 1, 1}}));
  }

  Stream stream{0};
  Dnn dnn{0};
};

TEST_F(DnnTest, Floats) { check_all_shapes<float>(); }
TEST_F(DnnTest, Halves) { check_all_shapes<Half>(); }
TEST_F(DnnTest, BFloats) { check_all_shapes<BFloat16>(); }

TEST_F(DnnTest, ChannelsLast) {
  check_all_shapes<float>(true);
  check_all_shapes<Half>(true);
  check_all_shapes<BFloat16>(true);
}

TEST_F(DnnTest, LinesAsRowsAndAsColumns) {
  for (const bool rows : {false, true})
    for (const bool last : {false, true}) {
      Dnn dnn(0, {.search = DnnSearch::heuristics, .lines_are_rows = rows});
      const Convolution problem = sized({.x = {2, 8, 33},
                                         .w = {16, 8, 5},
                                         .pads_begin = {2},
                                         .pads_end = {1},
                                         .strides = {2},
                                         .dilations = {2},
                                         .channels_last = last});
      check<float>(dnn, problem);
      check<Half>(dnn, problem);
    }
}

Convolution with_bias(bool channels_last) {
  return sized({.x = {2, 64, 28, 28},
                .w = {64, 64, 3, 3},
                .pads_begin = {1, 1},
                .pads_end = {1, 1},
                .channels_last = channels_last,
                .has_bias = true});
}

TEST_F(DnnTest, BiasIsPartOfThePlanIfAsked) {
  for (const bool asked : {false, true}) {
    Dnn dnn(0, {.search = DnnSearch::heuristics, .always_fuse = asked});
    for (const bool last : {false, true}) EXPECT_EQ(check<Half>(dnn, with_bias(last)).first.fused, asked);
  }
}

TEST_F(DnnTest, SearchesDiffer) {
  for (const DnnSearch search : {DnnSearch::measured, DnnSearch::heuristics, DnnSearch::standard}) {
    Dnn dnn(0, {.search = search});
    const Dnn::Prepared prepared = check<Half>(dnn, with_bias(true)).first;
    std::cout << "  search " << int(search) << ": " << prepared.timed << " timed, " << prepared.engine << "\n";
    EXPECT_EQ(prepared.timed > 0, search == DnnSearch::measured);
    EXPECT_FALSE(prepared.engine.empty());
  }
}

TEST_F(DnnTest, ARivalWinsWhereItIsFaster) {
  // What was found of a problem once holds for the whole process.
  const auto problem_of = [](int64_t images) {
    Convolution problem = with_bias(false);
    problem.x[0] = problem.y[0] = images;
    return problem;
  };
  const Convolution problem = problem_of(3);
  int calls = 0;
  EXPECT_TRUE(Dnn(0).prepare(stream, problem, [&] { ++calls; })->rival_won) << "nothing takes no time";
  EXPECT_GT(calls, 1);
  const int before = calls;
  EXPECT_TRUE(Dnn(0).prepare(stream, problem, [&] { ++calls; })->rival_won);
  EXPECT_EQ(calls, before) << "that it wins is known";
  DeviceArray<char> memory(size_t{256} << 20);
  EXPECT_FALSE(
      Dnn(0).prepare(stream, problem_of(4), [&] { fill(stream, memory.data(), 0, memory.size()); })->rival_won);
  EXPECT_FALSE(Dnn(0).prepare(stream, problem_of(5), [] { fail(Code::out_of_memory, "none left"); })->rival_won);
  Dnn trusting(0, {.search = DnnSearch::heuristics});
  EXPECT_FALSE(trusting.prepare(stream, problem, [] { ADD_FAILURE() << "nothing is timed"; })->rival_won);
}

TEST_F(DnnTest, ExpectedProblemsArePreparedTogether) {
  std::vector<Convolution> problems;
  for (int64_t channels = 8; channels <= 64; channels += 8)
    problems.push_back(sized({.type = Type::f16,
                              .x = {1, channels, 20, 20},
                              .w = {24, channels, 3, 3},
                              .pads_begin = {1, 1},
                              .pads_end = {1, 1},
                              .channels_last = true,
                              .has_bias = true,
                              .curve = Convolution::Curve::relu}));
  Convolution wrong = problems[0];
  wrong.groups = 3;  // says so when it is prepared
  dnn.expect(wrong);
  for (const Convolution& problem : problems) dnn.expect(problem);
  check<Half>(problems[0]);
  EXPECT_EQ(dnn.tuned().size(), problems.size());
  for (const Convolution& problem : problems) check<Half>(problem);
  EXPECT_EQ(dnn.tuned().size(), problems.size());
}

TEST_F(DnnTest, TheBatchNeedNotBeExpected) {
  const auto problem_of = [](int64_t images, int64_t channels) {
    return sized({.type = Type::f16,
                  .x = {images, channels, 12, 12},
                  .w = {16, channels, 3, 3},
                  .pads_begin = {1, 1},
                  .pads_end = {1, 1}});
  };
  for (const int64_t channels : {8, 16, 24}) {
    Convolution problem = problem_of(1, channels);
    problem.x[0] = problem.y[0] = -1;
    dnn.expect(problem);
  }
  for (const int64_t images : {3, 2}) {
    const size_t before = dnn.tuned().size();
    check<Half>(problem_of(images, 16));
    EXPECT_EQ(dnn.tuned().size(), before + 3);
    check<Half>(problem_of(images, 8));
    EXPECT_EQ(dnn.tuned().size(), before + 3);
  }
}

TEST_F(DnnTest, WhatWasFoundIsTakenOver) {
  const std::string path = ::testing::TempDir() + "encore_dnn_test_tuning";
  std::remove(path.c_str());
  const auto problem_of = [](int64_t images) {
    Convolution problem = with_bias(true);
    problem.x[0] = problem.y[0] = images;
    problem.curve = Convolution::Curve::relu;
    return problem;
  };
  std::vector<std::string> engines;
  std::vector<int> timed;
  for (int i = 0; i < 3; ++i) {
    // The first finds it, the second has it of this process, the third of the file, as another process would.
    const auto tuning = std::make_shared<TuningCache>(path);
    EXPECT_EQ(tuning->complaint(), "");
    EXPECT_EQ(tuning->size(), i == 0 ? 0u : 1u);
    Dnn dnn(0, {.tuning = tuning});
    const Dnn::Prepared prepared = check<Half>(dnn, problem_of(6)).first;
    engines.emplace_back(prepared.engine);
    timed.push_back(prepared.timed);
    EXPECT_EQ(tuning->size(), 1u);
    if (i == 1) TuningCache::of("")->forget();
  }
  EXPECT_EQ(engines, std::vector<std::string>(3, engines[0]));
  EXPECT_EQ(timed, std::vector<int>(3, timed[0]));

  // What is nonsense to cuDNN is searched anew.
  const auto tuning = std::make_shared<TuningCache>("");
  TuningCache::of("")->forget();
  Dnn first(0, {.tuning = tuning});
  check<Half>(first, problem_of(7));
  for (const auto& [key, value] : tuning->entries()) {
    TunedConvolution tuned = TunedConvolution::decode(value).value();
    tuned.plan = "no plan", tuned.engine = "none", tuned.candidate = 1000;
    tuning->put(key, tuned.encode());
  }
  Dnn second(0, {.tuning = tuning});
  EXPECT_NE(check<Half>(second, problem_of(7)).first.engine, "none");
}

TEST_F(DnnTest, DeterministicIsTheSameToTheBit) {
  std::vector<Half> first;
  for (int i = 0; i < 3; ++i) {
    Dnn dnn(0, {.deterministic = true});
    const auto [prepared, y] = check<Half>(dnn, with_bias(true));
    EXPECT_EQ(prepared.timed, 0);
    if (first.empty()) first = y;
    ASSERT_EQ(y.size(), first.size());
    EXPECT_EQ(std::memcmp(y.data(), first.data(), y.size() * sizeof(Half)), 0);
  }
}

TEST_F(DnnTest, WorkspaceIsLimited) {
  for (const size_t limit : {size_t{0}, size_t{1} << 20}) {
    Dnn dnn(0, {.most_workspace_bytes = limit});
    EXPECT_LE(check<float>(dnn, with_bias(false)).first.workspace_bytes, limit);
  }
}

TEST_F(DnnTest, UnequalPads) {
  check<float>(
      sized({.x = {1, 4, 12, 12}, .w = {6, 4, 3, 3}, .pads_begin = {0, 1}, .pads_end = {1, 2}, .strides = {2, 2}}));
  check<float>(sized({.x = {1, 4, 15}, .w = {6, 4, 4}, .pads_begin = {1}, .pads_end = {2}}));
}

TEST_F(DnnTest, Transposed) {
  for (const bool tf32 : {false, true}) {
    check<float>(sized({.x = {2, 8, 7, 9},
                        .w = {8, 4, 3, 3},
                        .pads_begin = {1, 1},
                        .pads_end = {1, 1},
                        .strides = {2, 2},
                        .transposed = true,
                        .tf32 = tf32},
                       1));
    check<float>(sized(
        {.x = {1, 8, 6, 6}, .w = {8, 3, 2, 2}, .strides = {2, 2}, .groups = 2, .transposed = true, .tf32 = tf32}));
  }
  check<Half>(sized({.x = {1, 8, 6, 6}, .w = {8, 16, 2, 2}, .strides = {2, 2}, .transposed = true}));
  check<float>(
      sized({.x = {1, 4, 9}, .w = {4, 6, 4}, .pads_begin = {1}, .pads_end = {1}, .strides = {2}, .transposed = true}));
  check<float>(sized({.x = {1, 4, 3, 4, 5}, .w = {4, 2, 2, 2, 2}, .strides = {2, 2, 2}, .transposed = true}));
}

TEST_F(DnnTest, WhatFollowsTheConvolution) {
  for (int i = 1; i < 8; ++i) {
    const Convolution problem = sized({.x = {2, 16, 14, 14},
                                       .w = {32, 16, 3, 3},
                                       .pads_begin = {1, 1},
                                       .pads_end = {1, 1},
                                       .has_bias = (i & 1) != 0,
                                       .has_residual = (i & 2) != 0,
                                       .curve = i & 4 ? Convolution::Curve::relu : Convolution::Curve::none});
    check<float>(problem);
    check<Half>(problem);
    Convolution faster = problem;
    faster.tf32 = true;
    check<float>(faster);
  }
}

TEST_F(DnnTest, WithoutABiasARelusEnginesAreThoseWithOne) {
  Dnn dnn(0, {.search = DnnSearch::heuristics, .always_fuse = true});
  Convolution problem = sized({.x = {1, 16, 14, 14},
                               .w = {32, 16, 3, 3},
                               .pads_begin = {1, 1},
                               .pads_end = {1, 1},
                               .channels_last = true,
                               .has_bias = true,
                               .curve = Convolution::Curve::relu});
  const std::string engine(check<Half>(dnn, problem).first.engine);
  problem.has_bias = false;
  EXPECT_EQ(check<Half>(dnn, problem).first.engine, engine);
}

TEST_F(DnnTest, CurvesAreThoseOfTheirNames) {
  using Curve = Convolution::Curve;
  Dnn fusing(0, {.always_fuse = true});
  for (const Curve curve : {Curve::silu, Curve::gelu, Curve::gelu_tanh})
    for (const bool has_residual : {false, true}) {
      const Convolution problem = sized({.x = {2, 16, 14, 14},
                                         .w = {32, 16, 3, 3},
                                         .pads_begin = {1, 1},
                                         .pads_end = {1, 1},
                                         .channels_last = true,
                                         .has_bias = true,
                                         .has_residual = has_residual,
                                         .curve = curve});
      EXPECT_TRUE(check<Half>(fusing, problem).first.fused);
      check<float>(problem);
    }
}

TEST_F(DnnTest, WithoutTf32FloatsKeepTheirBits) {
  // 1 + 2^-20 is 1 in TF32.
  const Convolution problem = sized({.x = {1, 16, 8, 8}, .w = {16, 16, 1, 1}});
  DeviceArray<float> x(std::vector<float>(16 * 64, 1 + 0x1p-20f)), w(std::vector<float>(256, 1)), y(16 * 64);
  DeviceArray<char> workspace(dnn.prepare(stream, problem)->workspace_bytes);
  dnn.run(stream, problem, x.data(), w.data(), nullptr, nullptr, y.data(), workspace.data());
  for (const float value : y.download(stream)) ASSERT_EQ(value, 16 + 0x1p-16f);
}

TEST_F(DnnTest, EmptyBatchesLaunchNothing) {
  const Convolution problem = sized({.x = {0, 4, 8, 8}, .w = {4, 4, 3, 3}});
  EXPECT_EQ(dnn.prepare(stream, problem)->workspace_bytes, 0u);
  dnn.run(stream, problem, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
}

TEST_F(DnnTest, CapturesOnlyWhatWasPrepared) {
  const Case<float> first(sized({.x = {1, 4, 8, 8}, .w = {4, 4, 3, 3}}), 1), second(first.problem, 50);
  begin_capture(stream, CaptureMode::thread_local_);
  EXPECT_ERROR(dnn.prepare(stream, first.problem), Code::capture_forbidden);
  abandon_capture(stream);

  const Dnn::Prepared prepared = dnn.prepare(stream, first.problem).value();
  DeviceArray<float> x(first.x), w(first.w), y(first.residual.size());
  DeviceArray<char> workspace(prepared.workspace_bytes);
  const auto run = [&] {
    dnn.run(stream, first.problem, x.data(), w.data(), nullptr, nullptr, y.data(), workspace.data());
  };
  run();
  const std::vector<float> eager = y.download(stream);
  begin_capture(stream, CaptureMode::thread_local_);
  run();
  const GraphExec exec = end_capture(stream).instantiate();
  exec.launch(stream);
  EXPECT_EQ(y.download(stream), eager);
  x.upload(stream, second.x), w.upload(stream, second.w);
  exec.launch(stream);
  second.expect_equal(y.download(stream), true);
}

// Streams for captures are of another context, into which kernels that cuDNN has compiled can't follow.
TEST_F(DnnTest, CapturesWhatWasCompiled) {
  using Curve = Convolution::Curve;
  Dnn fusing(0, {.always_fuse = true});
  for (const Curve curve : {Curve::none, Curve::relu, Curve::silu, Curve::gelu}) {
    const Case<Half> layer(sized({.x = {1, 16, 14, 14},
                                  .w = {32, 16, 3, 3},
                                  .pads_begin = {1, 1},
                                  .pads_end = {1, 1},
                                  .channels_last = true,
                                  .has_bias = true,
                                  .curve = curve}));
    const Dnn::Prepared prepared = fusing.prepare(stream, layer.problem).value();
    DeviceArray<Half> x(layer.x), w(layer.w), bias(layer.bias), y(layer.residual.size());
    DeviceArray<char> workspace(prepared.workspace_bytes);
    const auto run = [&](StreamRef on) {
      fusing.run(on, layer.problem, x.data(), w.data(), bias.data(), nullptr, y.data(), workspace.data());
    };
    run(stream);
    const std::vector<Half> eager = y.download(stream);
    y.upload(stream, std::vector<Half>(eager.size()));
    const CaptureStream capturing(0);
    begin_capture(capturing, CaptureMode::thread_local_);
    run(capturing);
    const GraphExec exec = end_capture(capturing).instantiate();
    for (int launch = 0; launch < 2; ++launch) exec.launch(stream);
    const std::vector<Half> replayed = y.download(stream);
    EXPECT_EQ(std::memcmp(replayed.data(), eager.data(), eager.size() * sizeof(Half)), 0) << int(curve);
  }
}

TEST_F(DnnTest, WithoutAnEngineItSaysSo) {
  std::vector<std::string> said;
  Dnn dnn(0, {.warn = [&](const std::string& message) { said.push_back(message); }});
  Convolution problem = sized({.x = {1, 4, 8, 8}, .w = {4, 4, 3, 3}});
  problem.y[2] += 1;  // cuDNN's own check finds that
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(dnn.prepare(stream, problem));
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find(describe(problem)), std::string::npos) << said[0];
}

TEST_F(DnnTest, RefusesWhatIsWrong) {
  const Convolution good = sized({.x = {1, 4, 8, 8}, .w = {4, 4, 3, 3}});
  const auto with = [&](auto change) {
    Convolution problem = good;
    change(problem);
    dnn.prepare(stream, problem);
  };
  EXPECT_ERROR(with([](Convolution& p) { p.groups = 3; }), Code::invalid_input);
  EXPECT_ERROR(with([](Convolution& p) { p.w[1] = 5; }), Code::invalid_input);
  EXPECT_ERROR(with([](Convolution& p) { p.strides[0] = 0; }), Code::invalid_input);
  EXPECT_ERROR(with([](Convolution& p) { p.pads_begin[0] = -1; }), Code::invalid_input);
  EXPECT_ERROR(with([](Convolution& p) { p.strides.pop_back(); }), Code::invalid_input);
  for (const Type type : {Type::i32, Type::f64})
    EXPECT_ERROR(with([&](Convolution& p) { p.type = type; }), Code::not_supported);
  DeviceArray<float> memory(4096);
  EXPECT_ERROR(dnn.run(stream, good, memory.data() + 1, memory.data(), nullptr, nullptr, memory.data(), memory.data()),
               Code::invalid_input);
}

#endif

}  // namespace
}  // namespace encore::device
