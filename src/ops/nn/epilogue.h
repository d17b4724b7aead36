// What follows a convolution, done where its result is at hand: y = activation(y + bias + residual).
#pragma once
#include "ops/nn/activation.h"
#include "ops/nn/convolve.h"

namespace encore::ops {

struct Epilogue {
  const void* bias = nullptr;      // one number a channel
  const void* residual = nullptr;  // shaped as y
  Activation activation;

  bool is_empty() const { return !bias && !residual && activation.kind == Activation::Kind::none; }
};

// `width`: the positions of an image.
void finish(StreamRef stream, const ConvProblem& problem, int64_t width, const Epilogue& epilogue, void* y);

}  // namespace encore::ops
