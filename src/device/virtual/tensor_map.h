#pragma once
#include "device/tensor_map.h"

namespace encore::device {

struct TensorMap {
  const void* at;
  int64_t rows, columns, row_distance;

  template <class T>
  T value(int64_t row, int64_t column) const {
    if (row >= rows || column >= columns) return T(0.f);
    return static_cast<const T*>(at)[row * row_distance + column];
  }
};

}  // namespace encore::device
