// Layer normalisation of rows, with what models put around it: a residual and a bias added before, only the root of the
// mean square (no centring), the statistics as outputs.
#pragma once
#include <cstdint>

#include "device/stream.h"
#include "ops/tensor.h"

namespace encore::ops {

// x, skip, bias and sum have one type, gamma and beta another, which may be the same, and y either. Parts of x are
// float.
struct RowNorm {
  int64_t rows, width;
  const void* x;
  const void* skip = nullptr;  // added to x; its rows repeat
  int64_t skip_rows = 1;
  const void* bias = nullptr;  // one row, added too
  void* sum = nullptr;         // x + skip + bias
  struct Parameter {
    const void* data = nullptr;
    int64_t step = 0;  // from one row's values to the next row's: 0 or the width
  } gamma, beta;       // beta: null adds nothing
  void* y;
  const void* behind = nullptr;  // added to y, once that is rounded; of its type
  struct Ahead {
    const void* gamma = nullptr;  // one row
    double epsilon = 0;
  } ahead = {};          // x is normed by it first, without its mean, and rounded; then there is a skip, and no bias
  void* mean = nullptr;  // of each row
  void* inverse_deviation = nullptr;
  bool double_statistics = false;  // mean and inverse_deviation are double, else float
  bool centred = true;             // false: the mean is taken as zero
  bool strict = false;             // compute in twice the precision, where there is a sum and it is float
  double epsilon = 1e-5;
  int parts = 1;  // x is the sum of so many, which lie one behind the other; see normalize_parts()
};

// The input of LayerNormalization and its kin that is added to the result, of the same shape and type. Fusion alone
// gives it.
inline constexpr int kBehindNorm = 3;

struct NormTypes {
  Type x, gamma, y;
};
// Whether there are kernels for these types. What is added to x is so where y has its type.
bool can_normalize(const NormTypes& types);
void normalize_rows(device::StreamRef stream, const RowNorm& norm, const NormTypes& types);

}  // namespace encore::ops
