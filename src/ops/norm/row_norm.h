// Layer normalisation of rows, with what models put around it: a residual and a bias added before, only the root of the
// mean square (no centring), the statistics as outputs.
#pragma once
#include <cstdint>

#include "device/stream.h"
#include "ops/tensor.h"

namespace encore::ops {

// x, skip, bias and sum have one type, gamma, beta and y another, which may be the same. Parts of x are float.
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
  void* mean = nullptr;  // of each row
  void* inverse_deviation = nullptr;
  bool double_statistics = false;  // mean and inverse_deviation are double, else float
  bool centred = true;             // false: the mean is taken as zero
  bool strict = false;             // compute in twice the precision, where there is a sum and it is float
  double epsilon = 1e-5;
  int parts = 1;  // x is the sum of so many, which lie one behind the other; see normalize_parts()
};

// Whether there are kernels for these types of x and gamma.
bool can_normalize(Type x, Type gamma);
void normalize_rows(device::StreamRef stream, const RowNorm& norm, Type x, Type gamma);

}  // namespace encore::ops
