// The activations of recurrent cells. All let NaN through.
#pragma once
#include "ops/elementwise/curves.h"

namespace encore::ops {

struct Squash {
  enum class Kind {
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
  Kind kind = Kind::tanh;
  float alpha = 0, beta = 0;

  template <class C>
  DEVICE_FN C operator()(C x) const {
    switch (kind) {
      case Kind::tanh: return std::tanh(x);
      case Kind::sigmoid: return sigmoid(x);
      case Kind::relu: return relu(x);
      case Kind::affine: return C(alpha) * x + C(beta);
      case Kind::leaky_relu: return leaky_relu(x, C(alpha));
      case Kind::thresholded_relu: return x <= C(alpha) ? C(0) : x;
      case Kind::scaled_tanh: return C(alpha) * std::tanh(C(beta) * x);
      case Kind::hard_sigmoid: return hard_sigmoid(x, C(alpha), C(beta));
      case Kind::elu: return elu(x, C(alpha));
      case Kind::softsign: return softsign(x);
      default: return softplus(x);
    }
  }
};

}  // namespace encore::ops
