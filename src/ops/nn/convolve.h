// Convolutions by Encore's own kernels and matrix products, on any device.
#pragma once
#include "ops/nn/window.h"
#include "ops/op.h"

namespace encore::ops {

// Transposed or not, the window slides over the larger side: a transposed convolution goes from window.out to
// window.in.
struct ConvProblem {
  Type type;
  Window window;
  int64_t images, in_channels, out_channels, groups;
  bool tf32;
};
struct ConvData {
  const void *x, *w, *bias;  // no bias: null
  void* y;
};

void convolve(Context& context, const ConvProblem& problem, const ConvData& data);
void convolve_transposed(Context& context, const ConvProblem& problem, const ConvData& data);

// One group a channel.
bool is_depthwise(const ConvProblem& problem);
void convolve_depthwise(Context& context, const ConvProblem& problem, const ConvData& data);

void add_bias(Context& context, Type type, int64_t images, int64_t channels, int64_t width, const void* bias, void* y);

}  // namespace encore::ops
