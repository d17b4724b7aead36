// Convolutions with a group for each channel. There is nothing to multiply as matrices: they are bound by memory.
#pragma once
#include "ops/nn/epilogue.h"

namespace encore::ops {

bool is_depthwise(const ConvProblem& problem);

// y = activation(conv(x, w) + bias + residual), of data's bias.
void convolve_depthwise(StreamRef stream, const ConvProblem& problem, const ConvData& data, const Epilogue& rest);

// Whether it reads an x that is part of something wider.
bool reads_parts_depthwise(const ConvProblem& problem, const ConvData& data, const Epilogue& rest);

// 3, 5 or 7 taps to a side, one step or two to the next output.
bool has_square_taps(const Window& window);

// Calls f<kTaps, kSteps>(), of a window that has such.
template <class F>
void with_square_taps(const Window& window, F f) {
  const auto with_taps = [&]<int kTaps> {
    window.stride[2] == 2 ? f.template operator()<kTaps, 2>() : f.template operator()<kTaps, 1>();
  };
  switch (window.kernel[2]) {
    case 3: return with_taps.template operator()<3>();
    case 5: return with_taps.template operator()<5>();
    default: return with_taps.template operator()<7>();
  }
}

}  // namespace encore::ops
