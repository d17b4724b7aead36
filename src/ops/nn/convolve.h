// Convolutions by Encore's own kernels and matrix products, on any device.
#pragma once
#include <functional>
#include <optional>

#include "device/blas.h"
#include "device/dnn.h"
#include "ops/nn/activation.h"
#include "ops/nn/window.h"
#include "ops/op.h"

namespace encore::ops {

// Transposed or not, the window slides over the larger side: a transposed convolution goes from window.out to
// window.in.
struct ConvProblem {
  Type type;
  Layout layout;
  Window window;
  int64_t images, in_channels, out_channels, groups;
  bool tf32;
};
struct ConvData {
  const void *x, *w, *bias;  // w as arrange_weights() makes it; no bias: null
  void* y;
  bool constant_w = false;  // nothing in a stream ever writes it: it may be read before earlier work is done
  bool is_filled = false;   // x and w have kFilledChannels (convolve_tiles.h)
  // Channels last: from one position's channels in x to the next one's, where x is part of something wider; else 0.
  // Only for those who say that they read such an x.
  int64_t x_pitch = 0;
};
// Attributes of a convolution whose x is that, its channels from one to beyond another; fusion alone sets them.
inline constexpr const char* kFirstChannel = "first_channel";
inline constexpr const char* kLastChannel = "last_channel";
inline int64_t x_pitch(const ConvProblem& problem, const ConvData& data) {
  return data.x_pitch ? data.x_pitch : problem.in_channels;
}

// Channels last wants the taps of all channels side by side: [output, channel, taps] become [output, taps, channel],
// and if there is a group for each channel [taps, output]. Weights of a transposed convolution, [input, channel, taps],
// are always arranged as those of one group.
bool wants_arranging(const Shape& w, int64_t groups);
void arrange_weights(StreamRef stream, const Tensor& w, int64_t groups, void* into);

// Whether convolve() may be faster than cuDNN: where a product needs at most a copy of x, and where cuDNN would do one
// group after the other.
bool suits_product(const ConvProblem& problem);
// Whether it is taken to be where nothing is timed.
bool is_product(const ConvProblem& problem, const device::DnnSettings& settings);

void convolve(Context& context, const ConvProblem& problem, const ConvData& data);
// The product that a convolution is, if it is of one group and single positions whose channels lie side by side. It
// reads parts.
std::optional<device::Gemm> pointwise_product(const ConvProblem& problem, const ConvData& data, const void* residual);
// As convolve(), with a residual, which may be null, and an activation. False if it is no such product.
bool convolve_pointwise(Context& context, const ConvProblem& problem, const ConvData& data, const void* residual,
                        const Activation& activation);
void convolve_transposed(Context& context, const ConvProblem& problem, const ConvData& data);

// Channels first, with columns [image, channel, tap, position - first] that the caller fills, for some images and
// positions at a time.
struct ColumnRange {
  int64_t image, images, first, count;
};
void convolve_columns(Context& context, const ConvProblem& problem, const ConvData& data,
                      const std::function<void(const ColumnRange&, void* columns)>& fill);

// What there is without any input: the bias alone, or zeros.
void set_bias(Context& context, const ConvProblem& problem, const Tensor& y, const void* bias);

}  // namespace encore::ops
