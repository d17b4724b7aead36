// What elementwise programs may have at most, and what a compiled one is launched with.
#pragma once
#include "device/divide_small.h"

namespace encore::ops {

inline constexpr int kMostProgramDims = 5, kMostProgramInputs = 24, kMostProgramOutputs = 8;

struct ProgramArguments {
  // From one output to the next in each dimension, and where along it an input is begun.
  struct Walk {
    int strides[kMostProgramDims], shifts[kMostProgramDims];
  };
  const void* inputs[kMostProgramInputs];
  void* outputs[kMostProgramOutputs];
  device::SmallDivider sizes[kMostProgramDims];
  Walk walks[kMostProgramInputs];
};

}  // namespace encore::ops
