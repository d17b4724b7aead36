// Depthwise convolutions against loops in double, by every kernel that there is.
#include "ops/nn/depthwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <type_traits>
#include <vector>

#include "../device/on_device.h"
#include "device/half.h"
#include "ops/nn/channels_last_depthwise.h"

namespace encore::ops {
namespace {

using device::BFloat16;
using device::DeviceArray;
using device::Half;
using Kind = Activation::Kind;

struct Picture {
  int64_t images = 1, channels = 8;
  int in[kSpatial] = {1, 6, 7}, kernel[kSpatial] = {1, 3, 3}, stride[kSpatial] = {1, 1, 1};
  int dilation[kSpatial] = {1, 1, 1}, before[kSpatial] = {}, after[kSpatial] = {};
  bool has_bias = true, has_residual = false;
  Activation activation = {};
  int64_t beyond = 0;  // aligned addresses: where the tensors begin, in values
};

Window window_of(const Picture& p) {
  Window w;
  for (int d = 0; d < kSpatial; ++d) {
    w.in[d] = p.in[d], w.kernel[d] = p.kernel[d], w.stride[d] = p.stride[d], w.dilation[d] = p.dilation[d];
    w.before[d] = p.before[d], w.after[d] = p.after[d];
    w.out[d] = (p.in[d] + p.before[d] + p.after[d] - (p.kernel[d] - 1) * p.dilation[d] - 1) / p.stride[d] + 1;
  }
  return w;
}

template <class T>
constexpr Type type_of() {
  return std::is_same_v<T, float> ? Type::f32 : std::is_same_v<T, Half> ? Type::f16 : Type::bf16;
}

double activated(Activation activation, double x) {
  switch (activation.kind) {
    case Kind::relu: return std::fmax(x, 0);
    case Kind::silu: return x / (1 + std::exp(-x));
    case Kind::gelu: return x * std::erfc(-x / std::sqrt(2)) / 2;
    case Kind::tanh: return std::tanh(x);
    default: return x;
  }
}

template <class T>
class DepthwiseTest : public ::testing::Test {
 protected:
  // Channels first and last, of which `in_packs` tells whether the latter are moved in packs.
  void check(const Picture& p, bool in_packs = true) {
    for (const Layout layout : {Layout::channels_first, Layout::channels_last}) {
      SCOPED_TRACE(layout == Layout::channels_last ? "channels last" : "channels first");
      const ConvProblem problem{type_of<T>(), layout,     window_of(p), p.images,
                                p.channels,   p.channels, p.channels,   false};
      const auto x = random_values(p, p.images * problem.window.in_count() * p.channels, 1),
                 weights = random_values(p, problem.window.taps() * p.channels, 2),
                 bias = random_values(p, p.channels, 3),
                 residual = random_values(p, p.images * problem.window.out_count() * p.channels, 4);
      const DeviceArray<T> on_x(x), on_weights(weights), on_bias(bias), on_residual(residual), y(residual.size());
      const ConvData data{on_x.data() + p.beyond, on_weights.data() + p.beyond,
                          p.has_bias ? on_bias.data() + p.beyond : nullptr, y.data() + p.beyond};
      const Epilogue rest{nullptr, p.has_residual ? on_residual.data() + p.beyond : nullptr, p.activation};
      if (layout == Layout::channels_last)
        EXPECT_EQ(convolve_depthwise_channels_last(stream.ref(), problem, data, {}), in_packs);
      convolve_depthwise(stream.ref(), problem, data, rest);
      const std::vector<T> got = y.download(stream);
      for (int64_t i = 0; i < int64_t(got.size()) - p.beyond; ++i) {
        const auto [channel, sum] = sum_of(problem, x.data() + p.beyond, weights.data() + p.beyond, i);
        const double wanted = activated(p.activation, sum + (p.has_bias ? at(bias, channel + p.beyond) : 0) +
                                                          (p.has_residual ? at(residual, i + p.beyond) : 0));
        ASSERT_NEAR(at(got, i + p.beyond), wanted, tolerance() * (1 + std::abs(wanted))) << i;
      }
    }
  }

  device::Stream stream{0};

 private:
  struct Sum {
    int64_t channel;
    double value;
  };
  static double tolerance() { return std::is_same_v<T, float> ? 1e-5 : std::is_same_v<T, Half> ? 2e-3 : 1e-2; }
  static double at(const std::vector<T>& values, int64_t i) { return float(values[size_t(i)]); }
  static std::vector<T> random_values(const Picture& p, int64_t count, uint32_t seed) {
    std::mt19937 engine(seed);
    std::vector<T> values(static_cast<size_t>(count + p.beyond));
    for (T& value : values) value = T((float(engine() >> 8) / float(1 << 23)) - 1.0f);
    return values;
  }
  static Sum sum_of(const ConvProblem& p, const T* x, const T* weights, int64_t i) {
    const Window& w = p.window;
    const bool last = p.layout == Layout::channels_last;
    const int64_t places = w.out_count(), image = i / (places * p.out_channels);
    const int64_t channel = last ? i % p.out_channels : i / places % p.out_channels;
    const int64_t place = last ? i / p.out_channels % places : i % places;
    const int64_t out[kSpatial] = {place / w.out[2] / w.out[1], place / w.out[2] % w.out[1], place % w.out[2]};
    Sum sum{channel, 0};
    for (int64_t tap = 0; tap < w.taps(); ++tap) {
      const int64_t taps[kSpatial] = {tap / w.kernel[2] / w.kernel[1], tap / w.kernel[2] % w.kernel[1],
                                      tap % w.kernel[2]};
      int64_t from = 0;
      bool inside = true;
      for (int d = 0; d < kSpatial; ++d) {
        const int64_t at = out[d] * w.stride[d] - w.before[d] + taps[d] * w.dilation[d];
        inside = inside && at >= 0 && at < w.in[d];
        from = from * w.in[d] + at;
      }
      if (!inside) continue;
      const int64_t of_x = last ? (image * w.in_count() + from) * p.in_channels + channel
                                : (image * p.in_channels + channel) * w.in_count() + from;
      const int64_t of_weights = last ? tap * p.out_channels + channel : channel * w.taps() + tap;
      sum.value += double(float(x[of_x])) * float(weights[of_weights]);
    }
    return sum;
  }
};
using Floats = ::testing::Types<float, Half, BFloat16>;
TYPED_TEST_SUITE(DepthwiseTest, Floats);

TYPED_TEST(DepthwiseTest, ChannelsThatFillNoLargePacks) {
  for (const int64_t channels : {2, 12, 20, 34, 36, 50, 58})
    for (const int taps : {3, 5, 7})
      for (const int step : {1, 2})
        this->check({.images = 2,
                     .channels = channels,
                     .in = {1, 9, 11},
                     .kernel = {1, taps, taps},
                     .stride = {1, step, step},
                     .before = {0, taps / 2, 1},
                     .after = {0, 1, taps / 2}});
}

TYPED_TEST(DepthwiseTest, OddChannels) {
  this->check({.channels = 21, .before = {0, 1, 1}, .after = {0, 1, 1}}, std::is_same_v<TypeParam, float>);
  this->check({.channels = 3, .kernel = {1, 1, 1}}, std::is_same_v<TypeParam, float>);
}

TYPED_TEST(DepthwiseTest, ResidualsAndActivations) {
  for (const int taps : {1, 2, 3, 5, 7})
    for (const Kind kind : {Kind::none, Kind::relu, Kind::silu, Kind::gelu, Kind::tanh})
      for (const bool has_bias : {false, true})
        this->check({.images = 2,
                     .channels = 12,
                     .in = {1, 8, 9},
                     .kernel = {1, taps, taps},
                     .before = {0, taps / 2, taps / 2},
                     .after = {0, taps / 2, taps / 2},
                     .has_bias = has_bias,
                     .has_residual = true,
                     .activation = {kind}});
  this->check({.channels = 16, .in = {1, 9, 9}, .stride = {1, 2, 2}, .has_residual = true});
}

TYPED_TEST(DepthwiseTest, Dilations) {
  this->check({.channels = 16, .in = {1, 13, 12}, .dilation = {1, 2, 2}, .before = {0, 2, 2}, .after = {0, 2, 2}});
  this->check({.channels = 10, .in = {1, 13, 12}, .dilation = {1, 4, 3}, .before = {0, 4, 1}, .after = {0, 2, 3}});
  this->check({.images = 3,
               .channels = 8,
               .in = {1, 11, 14},
               .kernel = {1, 5, 5},
               .stride = {1, 2, 1},
               .dilation = {1, 2, 2},
               .before = {0, 4, 4},
               .after = {0, 4, 4},
               .has_residual = true});
  this->check({.channels = 4, .in = {1, 3, 2}, .dilation = {1, 6, 6}, .before = {0, 6, 6}, .after = {0, 6, 6}});
}

TYPED_TEST(DepthwiseTest, Windows) {
  this->check({.images = 2, .channels = 24, .kernel = {1, 1, 1}});
  this->check({.channels = 6, .kernel = {1, 1, 1}, .stride = {1, 2, 3}, .before = {0, 1, 2}, .after = {0, 0, 1}});
  this->check({.channels = 20, .in = {1, 8, 7}, .kernel = {1, 9, 9}, .before = {0, 4, 4}, .after = {0, 4, 4}});
  this->check({.channels = 8, .in = {1, 9, 7}, .kernel = {1, 2, 2}, .stride = {1, 2, 2}});
  this->check({.channels = 8, .in = {1, 9, 7}, .kernel = {1, 4, 3}, .before = {0, 0, 2}, .after = {0, 3, 0}});
  this->check({.channels = 8, .in = {1, 9, 9}, .stride = {1, 3, 3}, .before = {0, 1, 1}, .after = {0, 1, 1}});
  this->check({.channels = 8, .in = {1, 9, 9}, .stride = {1, 1, 2}, .before = {0, 1, 1}, .after = {0, 1, 1}});
}

TYPED_TEST(DepthwiseTest, WindowsOfOneLine) {
  for (const int taps : {2, 9, 11, 31}) {
    this->check({.images = 2, .channels = 12, .in = {1, 5, 33}, .kernel = {1, 1, taps}, .before = {0, 0, taps / 2}});
    this->check({.images = 2, .channels = 12, .in = {1, 33, 5}, .kernel = {1, taps, 1}, .before = {0, taps / 2, 0}});
  }
  this->check({.images = 2,
               .channels = 12,
               .in = {1, 34, 10},
               .kernel = {1, 7, 1},
               .stride = {1, 2, 3},
               .dilation = {1, 3, 1},
               .before = {0, 5, 1},
               .after = {0, 4, 2},
               .has_residual = true});
}

TYPED_TEST(DepthwiseTest, Volumes) {
  this->check({.channels = 8, .in = {5, 6, 7}, .kernel = {3, 3, 3}, .before = {1, 1, 1}, .after = {1, 1, 1}});
  this->check({.images = 2,
               .channels = 6,
               .in = {7, 6, 5},
               .kernel = {3, 2, 1},
               .stride = {2, 1, 1},
               .dilation = {2, 1, 1},
               .before = {2, 0, 1},
               .after = {1, 1, 0}});
  this->check({.channels = 6, .in = {7, 6, 5}, .kernel = {4, 1, 1}, .before = {1, 0, 0}, .has_residual = true});
}

// So many that threads have large packs, where there are such, and a thread of a tile has several outputs.
TYPED_TEST(DepthwiseTest, LargePictures) {
  for (const int64_t channels : {16, 18})
    for (const int taps : {1, 2, 3})
      this->check({.images = 2,
                   .channels = channels,
                   .in = {1, 90, 101},
                   .kernel = {1, taps, taps},
                   .before = {0, 1, 1},
                   .after = {0, 1, 0},
                   .has_residual = true});
  this->check({.images = 4, .channels = 16, .in = {1, 1, 5000}, .kernel = {1, 1, 5}, .before = {0, 0, 2}});
}

TYPED_TEST(DepthwiseTest, Addresses) {
  for (const int taps : {1, 2, 3})
    for (const int64_t beyond : {1, 2, 4}) {
      const Picture p{.channels = 16, .kernel = {1, taps, taps}, .has_residual = true, .beyond = beyond};
      this->check(p, beyond * int64_t(sizeof(TypeParam)) >= 4);
    }
}

}  // namespace
}  // namespace encore::ops
