// Products of one to four rows, which take as long as reading b does: a kernel that streams it once, from wherever it
// lies. On CUDA blas.h has it beside what the library offers.
#pragma once
#include <vector>

#include "device/blas.h"

namespace encore::device {

inline constexpr int kMostFewRows = 4;

// How many threads of a block stand side by side along b's columns, for each way in which the product can be made; best
// guess first. None for a product that is not made here.
std::vector<int> few_rows_lanes(const Gemm& gemm, int multiprocessors);
// Whether it surely pays where nothing is timed.
bool few_rows_pay(const Gemm& gemm);

// As Blas::gemm(), but for `addend`, which is what beta multiplies and lies as c does: c itself or beside it. The same
// bits every time.
void multiply_few_rows(StreamRef stream, const Gemm& gemm, const void* a, const void* b, const void* addend, void* c,
                       const void* bias, int lanes);

}  // namespace encore::device
