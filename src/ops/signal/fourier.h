// Discrete Fourier transforms of many rows.
#pragma once
#include "ops/op.h"

namespace encore::ops {

// Where rows lie. Row `outer * inner_rows + inner` begins at outer * outer_stride + inner * inner_stride, and its
// elements, of one or two numbers, are `step` apart.
struct FourierSide {
  void* data;
  int64_t outer_stride, inner_stride, step;
  int64_t count;  // elements of a row; more of the input are zero, and more of the output are not wanted
  int numbers;    // of an element: 1 for real ones, 2 for complex ones
};

struct Fourier {
  Type type;
  int64_t rows, inner_rows;
  int64_t length;  // of the transform
  FourierSide in, out;
  const void* window = nullptr;  // `length` numbers that the input is multiplied by
  bool inverse = false;
  bool half_given = false;  // the input is half of a row that is its own conjugate when turned round
};

constexpr int64_t kLongestTransform = int64_t(1) << 28;

// Any length up to that: products of small primes directly, others as a convolution (Bluestein).
void fourier(Context& context, const Fourier& problem);

}  // namespace encore::ops
