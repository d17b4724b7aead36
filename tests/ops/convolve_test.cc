// Which convolutions are matrix products where cuDNN is there, too, and those by tiles, in each of their ways.
#include "ops/nn/convolve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "../device/on_device.h"
#include "device/half.h"
#include "ops/nn/convolve_tiles.h"

namespace encore::ops {
namespace {

using device::BFloat16;
using device::DeviceArray;
using device::Half;
using Kind = Activation::Kind;

// Over lines of 199 positions, as wav2vec 2.0 says where its tokens are.
ConvProblem of_groups(int64_t channels, int64_t groups, int taps) {
  Window window;
  window.in[2] = 199;
  window.kernel[2] = taps;
  window.before[2] = window.after[2] = taps / 2;
  window.out[2] = 199 + taps / 2 * 2 - taps + 1;
  return {Type::f16, Layout::channels_first, window, 1, channels, channels, groups, false};
}

TEST(Convolve, GroupsOfManyChannelsSuitAProduct) {
  EXPECT_TRUE(suits_product(of_groups(768, 16, 128)));
  EXPECT_TRUE(suits_product(of_groups(128, 16, 3)));
  EXPECT_FALSE(suits_product(of_groups(128, 32, 3)));
  EXPECT_FALSE(suits_product(of_groups(128, 128, 3)));
  EXPECT_FALSE(suits_product(of_groups(768, 1, 128))) << "windows overlap";
}

TEST(Convolve, LargeWindowsOfGroupsAreAProductIfNothingIsTimed) {
  const device::DnnSettings measured, heuristic{.search = device::DnnSearch::heuristics},
      deterministic{.deterministic = true};
  for (const auto& settings : {heuristic, deterministic}) {
    EXPECT_TRUE(is_product(of_groups(768, 16, 128), settings));
    EXPECT_FALSE(is_product(of_groups(768, 16, 3), settings));
  }
  EXPECT_FALSE(is_product(of_groups(768, 16, 128), measured)) << "it is a rival";
}

struct Picture {
  int64_t images = 1, in_channels = 8, out_channels = 8;
  int in[2] = {5, 6}, kernel[2] = {3, 3}, stride[2] = {1, 1}, dilation[2] = {1, 1}, before[2] = {1, 1},
      after[2] = {1, 1};
  bool has_bias = true, has_residual = false;
  Activation activation = {};
};

ConvProblem problem_of(Type type, const Picture& p) {
  Window w;
  for (int d = 0; d < 2; ++d) {
    w.in[1 + d] = p.in[d], w.kernel[1 + d] = p.kernel[d], w.stride[1 + d] = p.stride[d];
    w.dilation[1 + d] = p.dilation[d], w.before[1 + d] = p.before[d], w.after[1 + d] = p.after[d];
    w.out[1 + d] = (p.in[d] + p.before[d] + p.after[d] - (p.kernel[d] - 1) * p.dilation[d] - 1) / p.stride[d] + 1;
  }
  return {type, Layout::channels_last, w, p.images, p.in_channels, p.out_channels, 1, type == Type::f32};
}

template <class T>
class TileConvolutionTest : public ::testing::Test {
 protected:
  static std::vector<T> random_values(int64_t count, uint32_t seed) {
    std::mt19937 engine(seed);
    std::vector<T> values(static_cast<size_t>(count));
    for (T& value : values) value = T((float(engine() >> 8) / float(1 << 23)) - 1.0f);
    return values;
  }

  // In each way, against loops in double.
  void check(const Picture& p) {
    const ConvProblem problem = problem_of(device::kTypeOf<T>, p);
    const Window& w = problem.window;
    const auto x = random_values(p.images * w.in_count() * p.in_channels, 1),
               weights = random_values(p.out_channels * w.taps() * p.in_channels, 2),
               bias = random_values(p.out_channels, 3),
               residual = random_values(p.images * w.out_count() * p.out_channels, 4);
    const bool few = p.in_channels <= kFilledChannels;
    const DeviceArray<T> on_x(few ? filled(x, p.in_channels, 1, kFilledChannels) : x),
        on_w(few ? filled(weights, p.in_channels, w.taps(), filled_depth(w.taps())) : weights), on_bias(bias),
        on_residual(residual), y(residual.size());
    ConvData data{on_x.data(), on_w.data(), p.has_bias ? on_bias.data() : nullptr, y.data()};
    data.is_filled = few;
    const Epilogue rest{nullptr, p.has_residual ? on_residual.data() : nullptr, p.activation};
    ASSERT_TRUE(suits_tiles(problem, data, rest.residual));
    for (int n = 0; n < 4 * int(kFirstOfWarpgroups); ++n) {
      const TileGemmWay way{1 << n % 4, TileShape(n / 4)};
      SCOPED_TRACE(text("shape ", n / 4, " in ", way.parts));
      convolve_tiles(stream.ref(), problem, data, rest, way);
      const std::vector<T> got = y.download(stream);
      for (size_t i = 0; i < got.size(); ++i) {
        double wanted = sum_of(problem, x, weights, int64_t(i));
        if (p.has_bias) wanted += float(bias[i % size_t(p.out_channels)]);
        if (p.has_residual) wanted += float(residual[i]);
        if (p.activation.kind == Kind::relu) wanted = std::fmax(wanted, 0);
        if (p.activation.kind == Kind::silu) wanted = wanted / (1 + std::exp(-wanted));
        // The sum is rounded to T, and the activation's result once more. Floats are rounded before they are
        // multiplied, which shows in the root of their number.
        const double ulp = std::is_same_v<T, BFloat16> ? 1.0 / 128 : 1.0 / 1024;
        const double terms = std::is_same_v<T, float> ? std::sqrt(double(w.taps() * p.in_channels)) : 1;
        ASSERT_NEAR(float(got[i]), wanted, ulp * (terms + std::abs(wanted))) << i;
      }
    }
  }

  device::Stream stream{0};

 private:
  // Rows of places that have few channels each: with zeros behind these, and up to so many values a row.
  static std::vector<T> filled(const std::vector<T>& values, int64_t channels, int64_t places, int64_t row) {
    std::vector<T> made(values.size() / size_t(channels * places) * size_t(row), T(0.f));
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t place = int64_t(i) / channels, channel = int64_t(i) % channels;
      made[size_t(place / places * row + place % places * kFilledChannels + channel)] = values[i];
    }
    return made;
  }
  static double sum_of(const ConvProblem& p, const std::vector<T>& x, const std::vector<T>& weights, int64_t i) {
    const Window& w = p.window;
    const int64_t channel = i % p.out_channels, column = i / p.out_channels % w.out[2],
                  line = i / p.out_channels / w.out[2] % w.out[1], image = i / p.out_channels / w.out_count();
    double sum = 0;
    for (int a = 0; a < w.kernel[1]; ++a)
      for (int b = 0; b < w.kernel[2]; ++b) {
        const int64_t from_line = line * w.stride[1] - w.before[1] + a * w.dilation[1],
                      from_column = column * w.stride[2] - w.before[2] + b * w.dilation[2];
        if (from_line < 0 || from_line >= w.in[1] || from_column < 0 || from_column >= w.in[2]) continue;
        const int64_t from = ((image * w.in[1] + from_line) * w.in[2] + from_column) * p.in_channels,
                      of_weights = ((channel * w.kernel[1] + a) * w.kernel[2] + b) * p.in_channels;
        for (int64_t c = 0; c < p.in_channels; ++c)
          sum += double(float(x[size_t(from + c)])) * float(weights[size_t(of_weights + c)]);
      }
    return sum;
  }
};
using Types = ::testing::Types<Half, BFloat16, float>;
TYPED_TEST_SUITE(TileConvolutionTest, Types);

TYPED_TEST(TileConvolutionTest, ChannelsAndPictures) {
  this->check({});
  this->check({.images = 3, .in_channels = 24, .out_channels = 72, .in = {7, 5}});
  this->check({.in_channels = 64, .out_channels = 16, .in = {9, 9}});
  this->check({.in_channels = 136, .out_channels = 64, .in = {4, 3}});
  this->check({.in_channels = 8, .out_channels = 8, .in = {1, 1}});
}

TYPED_TEST(TileConvolutionTest, Windows) {
  this->check({.in_channels = 16, .in = {9, 8}, .stride = {2, 1}});
  this->check({.in_channels = 16, .in = {9, 8}, .dilation = {2, 3}, .before = {2, 3}, .after = {2, 3}});
  this->check({.in_channels = 40, .in = {6, 7}, .kernel = {2, 5}, .before = {0, 4}, .after = {1, 0}});
  this->check({.in_channels = 72, .in = {1, 30}, .kernel = {1, 7}, .before = {0, 3}, .after = {0, 3}});
}

TYPED_TEST(TileConvolutionTest, WhatFollows) {
  this->check({.in_channels = 32, .has_bias = false});
  this->check({.in_channels = 32, .has_residual = true, .activation = {Kind::relu}});
  this->check({.in_channels = 32, .has_bias = false, .has_residual = true});
  this->check({.in_channels = 32, .activation = {Kind::silu}});
}

TYPED_TEST(TileConvolutionTest, FewChannels) {
  this->check(
      {.in_channels = 3, .out_channels = 24, .in = {9, 10}, .kernel = {7, 7}, .stride = {2, 2}, .before = {3, 3}});
  this->check({.images = 2, .in_channels = 1, .in = {6, 7}, .kernel = {2, 5}, .before = {0, 4}, .after = {1, 0}});
  this->check(
      {.in_channels = 2, .in = {1, 40}, .kernel = {1, 10}, .stride = {1, 5}, .before = {0, 0}, .after = {0, 0}});
  this->check({.in_channels = 3, .in = {9, 8}, .dilation = {2, 3}, .has_residual = true, .activation = {Kind::relu}});
  this->check({.in_channels = 4, .out_channels = 16, .in = {7, 9}, .kernel = {4, 4}, .stride = {4, 4}});
}

// Two of their taps are copied at once.
TYPED_TEST(TileConvolutionTest, PatchesOfFewChannels) {
  Picture patches{.images = 2, .in_channels = 3, .out_channels = 24, .in = {8, 12}, .kernel = {4, 4}, .stride = {4, 4}};
  this->check(patches);  // which begin at odd places
  patches.before[0] = patches.before[1] = patches.after[0] = patches.after[1] = 0;
  this->check(patches);
  this->check({.in_channels = 1, .in = {32, 48}, .kernel = {16, 16}, .stride = {16, 16}, .before = {}, .after = {}});
  this->check({.in_channels = 4, .in = {5, 10}, .kernel = {3, 6}, .stride = {1, 2}, .before = {1, 4}, .after = {2, 4}});
  this->check({.in_channels = 2, .in = {6, 8}, .kernel = {2, 2}, .stride = {2, 2}, .dilation = {1, 3}});
}

TEST(TileConvolution, WeightsOfFewChannelsAreFilledUp) {
  const device::Stream stream{0};
  const std::vector<float> w{1, 2, 3, 4, 5, 6, 7, 8, 9};  // [1, 3, 3, 1]
  const DeviceArray<float> given(w), made(size_t(16));
  const Tensor tensor{Type::f32, Where::device, {1, 3, 3, 1}, const_cast<float*>(given.data())};
  ASSERT_EQ(filled_bytes(tensor), 16 * sizeof(float));
  fill_channels(stream, tensor, made.data());
  EXPECT_EQ(made.download(stream), (std::vector<float>{1, 4, 7, 0, 2, 5, 8, 0, 3, 6, 9, 0, 0, 0, 0, 0}));
}

TEST(TileConvolution, SuitsOneGroupWhoseChannelsAreLast) {
  const auto suits = [](auto change) {
    ConvProblem problem = problem_of(Type::f16, {});
    change(problem);
    return suits_tiles(problem, {}, nullptr);
  };
  EXPECT_TRUE(suits([](ConvProblem&) {}));
  EXPECT_TRUE(suits([](ConvProblem& p) { p.type = Type::f32, p.tf32 = true; }));
  EXPECT_FALSE(suits([](ConvProblem& p) { p.type = Type::f32; }));
  EXPECT_FALSE(suits([](ConvProblem& p) { p.in_channels = 3; })) << "not filled up";
  EXPECT_FALSE(suits_tiles(problem_of(Type::f16, {}), {.is_filled = true}, nullptr)) << "not few";
  EXPECT_FALSE(suits([](ConvProblem& p) { p.type = Type::f64; }));
  EXPECT_FALSE(suits([](ConvProblem& p) { p.layout = Layout::channels_first; }));
  EXPECT_FALSE(suits([](ConvProblem& p) { p.groups = 2; }));
  EXPECT_FALSE(suits([](ConvProblem& p) { p.in_channels = 12; }));
  EXPECT_FALSE(suits([](ConvProblem& p) { p.out_channels = 12; }));
  EXPECT_FALSE(suits([](ConvProblem& p) { p.images = 0; }));
  EXPECT_FALSE(suits([](ConvProblem& p) { p.images = int64_t(1) << 40; }));
  EXPECT_FALSE(suits([](ConvProblem& p) { p.in_channels = int64_t(1) << 60; }));
  EXPECT_FALSE(suits([](ConvProblem& p) { p.window.in[0] = p.window.out[0] = 2; })) << "three dimensions";
  EXPECT_FALSE(suits([](ConvProblem& p) { p.window.kernel[1] = p.window.kernel[2] = 1; })) << "a product as it is";
  EXPECT_FALSE(suits([](ConvProblem& p) { p.window.dilation[1] = 1 << 20; }));
  EXPECT_FALSE(suits_tiles(problem_of(Type::f16, {}), {.bias = reinterpret_cast<const void*>(8)}, nullptr));
}

// Of 132 multiprocessors, as measured.
TEST(TileConvolution, IsTakenForFewPositions) {
  const auto parts = [](int size, int64_t in, int64_t out, Kind kind = Kind::relu, int64_t images = 1, int most = 8) {
    return tile_convolution_way(
               problem_of(Type::f16, {.images = images, .in_channels = in, .out_channels = out, .in = {size, size}}),
               {kind}, {.multiprocessors = 132, .most_parts = most})
        .parts;
  };
  EXPECT_EQ(parts(7, 512, 512), 8);
  EXPECT_EQ(parts(14, 256, 256), 4);
  EXPECT_EQ(parts(28, 128, 128), 2);
  EXPECT_EQ(parts(56, 64, 64), 1);
  EXPECT_EQ(parts(56, 128, 32, Kind::none), 0) << "it takes no less than a library's";
  EXPECT_EQ(parts(56, 128, 32, Kind::silu), 2) << "which needs another kernel for this";
  EXPECT_EQ(parts(14, 256, 256, Kind::relu, 4), 0);
  EXPECT_EQ(parts(14, 512, 512), 0) << "too many steps";
  EXPECT_EQ(parts(56, 64, 64, Kind::relu, 1, 1), 0) << "only an activation's kernel is surely saved without clusters";
  EXPECT_EQ(parts(56, 64, 64, Kind::silu, 1, 1), 1);
}

TEST(TileConvolution, IsTakenOfFloatsAndForFewChannelsToo) {
  const auto parts = [](Type type, const Picture& picture) {
    return tile_convolution_way(problem_of(type, picture), {Kind::relu}, {.multiprocessors = 132, .most_parts = 8})
        .parts;
  };
  EXPECT_EQ(parts(Type::f32, {.in_channels = 512, .out_channels = 512, .in = {7, 7}}), 8);
  EXPECT_EQ(parts(Type::f32, {.in_channels = 256, .out_channels = 256, .in = {14, 14}}), 4);
  EXPECT_EQ(parts(Type::f32, {.in_channels = 64, .out_channels = 64, .in = {56, 56}}), 0);
  Picture first{.in_channels = 3, .out_channels = 64, .in = {224, 224}, .kernel = {7, 7}, .stride = {2, 2}};
  first.before[0] = first.before[1] = first.after[0] = first.after[1] = 3;
  for (const Type type : {Type::f16, Type::f32}) EXPECT_EQ(parts(type, first), 1);
  first.stride[0] = first.stride[1] = 1;
  EXPECT_EQ(parts(Type::f16, first), 0) << "too many positions";
}

}  // namespace
}  // namespace encore::ops
