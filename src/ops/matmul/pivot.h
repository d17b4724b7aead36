// What eliminations share: square matrices, and the choice of the largest of a column.
#pragma once
#include <cmath>
#include <cstdint>

#include "device/annotate.h"
#include "ops/op.h"

namespace encore::ops {

template <class C>
struct Pivot {
  C value;
  int32_t row;  // below zero: none

  // What is no number is the largest, so that it shows.
  DEVICE_FN static Pivot larger(const Pivot& a, const Pivot& b) {
    if (b.row < 0 || a.value != a.value) return a;
    return a.row < 0 || b.value != b.value || std::fabs(b.value) > std::fabs(a.value) ? b : a;
  }
  // The largest of a matrix's column `at` from the row `at` on.
  DEVICE_FN static Pivot of_column(auto& block, const C* matrix, int rows, int at) {
    return block.reduce(
        Pivot{C(0), -1},
        [&](int t) {
          Pivot best{C(0), -1};
          for (int row = at + t; row < rows; row += block.size())
            best = larger(best, {matrix[int64_t(row) * rows + at], row});
          return best;
        },
        [](const Pivot& a, const Pivot& b) { return larger(a, b); });
  }
};

// The rows of each of the matrices.
inline int64_t rows_of_square(const Shape& shape) {
  const int rank = shape.rank();
  require(rank >= 2 && shape[rank - 1] == shape[rank - 2], "the input has shape ", shape.str(),
          "; square matrices are wanted");
  constexpr int64_t kMostRows = 1 << 15;
  require(shape.back() <= kMostRows, "matrices of ", shape.back(), " rows; up to ", kMostRows, " are supported");
  return shape.back();
}

}  // namespace encore::ops
