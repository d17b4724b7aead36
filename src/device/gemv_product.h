// What the kernels of gemv.h are told.
#pragma once
#include <cmath>

#include "device/fast_math.h"
#include "device/gemv.h"
#include "device/launch.h"

namespace encore::device {

template <class T>
struct GemvProduct {
  const T *a, *b, *addend, *bias;
  T* c;
  int64_t lda, ldb, ldc;
  int rows, columns, depth;
  float alpha, beta;
  Epilogue epilogue;
  bool constant_b;
  GemvMore more;

  // What a result needs besides the sum.
  struct Late {
    T addend, bias;
  };
  DEVICE_FN bool has_late() const { return bias || beta != 0; }
  DEVICE_FN Late late(int row, int column) const {
    Late late = {};
    if (beta != 0) late.addend = addend[row * ldc + column];
    if (bias) late.bias = bias[column];
    return late;
  }
  DEVICE_FN void store(int row, int column, float sum, const Late& late) const {
    float value = alpha * sum;
    if (beta != 0) value += beta * float(late.addend);
    if (bias) value += float(late.bias);
    if (epilogue == Epilogue::relu) value = value < 0 ? 0 : value;
    if (epilogue == Epilogue::gelu_tanh)
      value *= 0.5f * (1 + tanhf(0.7978845608f * (value + 0.044715f * value * value * value)));
    c[row * ldc + column] = T(value);
  }
  // Gated: whether the column is one of x. That of y is kGateColumns behind it.
  DEVICE_FN static bool is_of_x(int column) { return column / kGateColumns % 2 == 0; }
  DEVICE_FN void store_gated(int row, int column, float x, float y) const {
    x *= alpha, y *= alpha;
    c[row * ldc + column / (2 * kGateColumns) * kGateColumns + column % kGateColumns] = T(x * fast_sigmoid(x) * y);
  }
  // The first of `count` neighbouring columns from `column` on: the last ones that there are if they would not fit in.
  DEVICE_FN int fitting(int column, int count) const { return column < columns - count ? column : columns - count; }
};

// In tiles of 8 * columns, on tensor cores: of halves, b not transposed, all of it in aligned packs.
template <class T>
void gemv_by_tiles(StreamRef stream, const GemvProduct<T>& product, int columns);

}  // namespace encore::device
