// An application may bind one buffer as an input and an output.
#pragma once
#include <functional>

#include "ops/tensor.h"

namespace encore::ops {

inline bool overlap(const Tensor& a, const Tensor& b) {
  const auto *first = static_cast<const char*>(a.data), *second = static_cast<const char*>(b.data);
  return std::less<>()(first, second + b.bytes()) && std::less<>()(second, first + a.bytes());
}

}  // namespace encore::ops
