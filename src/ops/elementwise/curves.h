// The curves of activations, in the type to compute in. All let NaN through.
#pragma once
#include <cmath>

#include "device/annotate.h"

namespace encore::ops {

template <class C>
DEVICE_FN C relu(C x) {
  return x < C(0) ? C(0) : x;
}
template <class C>
DEVICE_FN C leaky_relu(C x, C alpha) {
  return x < C(0) ? alpha * x : x;
}
template <class C>
DEVICE_FN C elu(C x, C alpha) {
  return x < C(0) ? alpha * std::expm1(x) : x;
}
template <class C>
DEVICE_FN C sigmoid(C x) {
  return C(1) / (C(1) + std::exp(-x));
}
template <class C>
DEVICE_FN C silu(C x, C alpha = C(1)) {
  return x / (C(1) + std::exp(-alpha * x));
}
template <class C>
DEVICE_FN C from_zero_to_one(C x) {
  return x < C(0) ? C(0) : x > C(1) ? C(1) : x;
}
template <class C>
DEVICE_FN C hard_sigmoid(C x, C alpha, C beta) {
  return from_zero_to_one(alpha * x + beta);
}
template <class C>
DEVICE_FN C hard_swish(C x) {
  return x * hard_sigmoid(x, C(1.0 / 6), C(0.5));
}
// log(1 + e^x), without an e^x that overflows.
template <class C>
DEVICE_FN C softplus(C x) {
  return relu(x) + std::log1p(std::exp(-std::fabs(x)));
}
template <class C>
DEVICE_FN C softsign(C x) {
  return x / (C(1) + std::fabs(x));
}

}  // namespace encore::ops
