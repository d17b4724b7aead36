// cuBLASLt: its functions, its handles, and what it says when it fails.
#pragma once
#include <cublasLt.h>

#include <string>

#include "device/cuda/library.h"

namespace encore::device::cuda {

inline constexpr size_t kMostWorkspaceBytes = size_t{32} << 20;  // what NVIDIA recommends for Hopper

// The functions of the library that are used here.
struct Lt {
  const Library& library = cublaslt();
#define ENCORE_LT(member, symbol) decltype(&symbol) member = library.find<decltype(symbol)>(#symbol)
  ENCORE_LT(create, cublasLtCreate);
  ENCORE_LT(status_string, cublasLtGetStatusString);
  ENCORE_LT(init_operation, cublasLtMatmulDescInit_internal);
  ENCORE_LT(set_operation, cublasLtMatmulDescSetAttribute);
  ENCORE_LT(init_layout, cublasLtMatrixLayoutInit_internal);
  ENCORE_LT(set_layout, cublasLtMatrixLayoutSetAttribute);
  ENCORE_LT(init_preference, cublasLtMatmulPreferenceInit_internal);
  ENCORE_LT(set_preference, cublasLtMatmulPreferenceSetAttribute);
  ENCORE_LT(heuristic, cublasLtMatmulAlgoGetHeuristic);
  ENCORE_LT(get_of_algorithm, cublasLtMatmulAlgoConfigGetAttribute);
  ENCORE_LT(matmul, cublasLtMatmul);
#undef ENCORE_LT
};
const Lt& lt();

// Throws what went wrong with which problem. The CUDA error behind the status, if any, is cleared and told too.
void check(cublasStatus_t status, const char* call, const std::string& problem);

// One for each device, until the process ends: destroying one waits for the whole device, which breaks the captures of
// all threads.
cublasLtHandle_t lt_handle(int device);

template <class T>
void set(cublasLtMatmulDescOpaque_t& operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(lt().set_operation(&operation, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute", {});
}
template <class T>
void set(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check(lt().set_preference(&preference, attribute, &value, sizeof value), "cublasLtMatmulPreferenceSetAttribute", {});
}

}  // namespace encore::device::cuda
