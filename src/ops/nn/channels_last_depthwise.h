// Depthwise convolutions with square kernels, channels last.
#pragma once
#include "ops/nn/convolve.h"

namespace encore::ops {

// False, and nothing is done, if another kernel has to: what it reads and writes lies in units of 16 bytes.
bool convolve_depthwise_channels_last(Context& context, const ConvProblem& problem, const ConvData& data,
                                      const Activation& activation);

// Of a depthwise convolution: 3, 5 or 7 taps to a side, one step or two to the next output.
bool has_square_taps(const Window& window);

}  // namespace encore::ops
