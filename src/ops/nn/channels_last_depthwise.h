// Depthwise convolutions with square kernels, channels last.
#pragma once
#include "ops/nn/convolve.h"

namespace encore::ops {

// False, and nothing is done, if another kernel has to: what it reads and writes lies in units of 16 bytes.
bool convolve_depthwise_channels_last(Context& context, const ConvProblem& problem, const ConvData& data,
                                      const Activation& activation);

// Of a depthwise convolution: 3, 5 or 7 taps to a side, one step or two to the next output.
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
