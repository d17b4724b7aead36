// The activations of recurrent cells. All let NaN through.
#pragma once
#include <cmath>

#include "device/annotate.h"

namespace encore::ops {

enum class Activation {
  relu,
  tanh,
  sigmoid,
  affine,
  leaky_relu,
  thresholded_relu,
  scaled_tanh,
  hard_sigmoid,
  elu,
  softsign,
  softplus,
};

struct Squash {
  Activation kind = Activation::tanh;
  float alpha = 0, beta = 0;

  template <class C>
  DEVICE_FN C operator()(C x) const {
    switch (kind) {
      case Activation::tanh: return std::tanh(x);
      case Activation::sigmoid: return C(1) / (C(1) + std::exp(-x));
      case Activation::relu: return x < C(0) ? C(0) : x;
      case Activation::affine: return C(alpha) * x + C(beta);
      case Activation::leaky_relu: return x < C(0) ? C(alpha) * x : x;
      case Activation::thresholded_relu: return x <= C(alpha) ? C(0) : x;
      case Activation::scaled_tanh: return C(alpha) * std::tanh(C(beta) * x);
      case Activation::hard_sigmoid: {
        const C y = C(alpha) * x + C(beta);
        return y < C(0) ? C(0) : y > C(1) ? C(1) : y;
      }
      case Activation::elu: return x < C(0) ? C(alpha) * std::expm1(x) : x;
      case Activation::softsign: return x / (C(1) + std::fabs(x));
      default: return (x < C(0) ? C(0) : x) + std::log1p(std::exp(-std::fabs(x)));  // softplus
    }
  }
};

}  // namespace encore::ops
