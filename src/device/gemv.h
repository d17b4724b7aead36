// GEMV and its like, products of a few rows, which take as long as reading b does: kernels that stream it once, from
// wherever it lies. On CUDA blas.h has them beside what the library offers.
#pragma once
#include <vector>

#include "device/blas.h"

namespace encore::device {

inline constexpr int kMostGemvRows = 8;

// One of the ways to make such a product: a block has 8 * `width` columns (4 * `width` of floats).
struct GemvWay {
  bool tiles = false;  // on tensor cores
  int width = 0;       // zero: none at all
  bool operator==(const GemvWay&) const = default;
};

// What such a product of halves may do besides, if b is not transposed.
struct GemvMore {
  // With gamma the only row of a is normed on its way: (a + skip) / sqrt(mean of the squares + epsilon) * gamma.
  const void *gamma = nullptr, *skip = nullptr;  // skip may be null
  void* sum = nullptr;                           // a + skip, if it is wanted
  float epsilon = 0;
  // Columns are of x and of y in turns, kGateColumns of each, and c has x * sigmoid(x) * y, in rows half as far apart;
  // nothing is added.
  bool gated = false;
};
inline constexpr int kGateColumns = 8;

// Best guess first; none for a product that is not made here. `aligned`: a and b begin at multiples of 16 bytes.
std::vector<GemvWay> gemv_ways(const Gemm& gemm, bool aligned, int multiprocessors);
// The one to take where nothing is timed, if it surely pays and does `more`, too; `aligned` is said of all that is
// read.
GemvWay gemv_way(const Gemm& gemm, bool aligned, int multiprocessors, const GemvMore& more = {});

// As Blas::gemm(), but for `addend`, which is what beta multiplies and lies as c does: c itself or beside it. The same
// bits every time.
void gemv(StreamRef stream, const Gemm& gemm, const void* a, const void* b, const void* addend, void* c,
          const void* bias, GemvWay way, const GemvMore& more = {});

}  // namespace encore::device
