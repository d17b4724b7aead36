// Matrix products by cuBLASLt. It thinks in columns: a row-major matrix is its transpose there, so c = a b is asked
// for as c' = b' a', and the bias, one value for each of our columns, runs along its rows as its epilogues want.
#include "device/blas.h"

#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "device/cuda/capture.h"
#include "device/cuda/check.h"
#include "device/cuda/library.h"
#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"
#include "device/memory.h"

namespace encore::device {
namespace {

constexpr size_t kAlgorithmBytes = size_t{32} << 20;  // what NVIDIA recommends for Hopper
constexpr size_t kZeroBytes = size_t{1} << 20;        // operands of a product without depth

// The functions of the library that are used here.
struct Lt {
  const cuda::Library& library = cuda::cublaslt();
#define ENCORE_LT(member, symbol) decltype(&symbol) member = library.find<decltype(symbol)>(#symbol)
  ENCORE_LT(create, cublasLtCreate);
  ENCORE_LT(destroy, cublasLtDestroy);
  ENCORE_LT(status_string, cublasLtGetStatusString);
  ENCORE_LT(init_operation, cublasLtMatmulDescInit_internal);
  ENCORE_LT(set_operation, cublasLtMatmulDescSetAttribute);
  ENCORE_LT(init_layout, cublasLtMatrixLayoutInit_internal);
  ENCORE_LT(set_layout, cublasLtMatrixLayoutSetAttribute);
  ENCORE_LT(init_preference, cublasLtMatmulPreferenceInit_internal);
  ENCORE_LT(set_preference, cublasLtMatmulPreferenceSetAttribute);
  ENCORE_LT(heuristic, cublasLtMatmulAlgoGetHeuristic);
  ENCORE_LT(matmul, cublasLtMatmul);
#undef ENCORE_LT
};
const Lt& lt() {
  static const Lt functions;
  return functions;
}

Code code_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED: return Code::out_of_memory;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH: return Code::not_supported;
    case CUBLAS_STATUS_INVALID_VALUE: return Code::internal;
    default: return Code::device_failed;
  }
}

// Throws what went wrong with which problem. The CUDA error behind the status, if any, is cleared and told too.
void check(cublasStatus_t status, const char* call, const std::string& problem) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const cudaError_t cause = cudaGetLastError();
  throw Error(cause == cudaSuccess ? code_of(status) : cuda::code_of(cause),
              text(lt().status_string(status), cause == cudaSuccess ? "" : text(", ", cudaGetErrorString(cause)),
                   problem.empty() ? "" : ": ", problem),
              call);
}

struct Types {
  cudaDataType_t value, result, scale;
  cublasComputeType_t compute;
};
Types types_of(const Gemm& g) {
  switch (g.type) {
    case Type::f64: return {CUDA_R_64F, CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F};
    case Type::f16: return {CUDA_R_16F, CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    case Type::bf16: return {CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    case Type::i8: return {CUDA_R_8I, CUDA_R_32I, CUDA_R_32I, CUBLAS_COMPUTE_32I};
    case Type::f32:
      return {CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, g.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F};
    default: fail(Code::not_supported, describe(g), ": cuBLASLt has no product of ", name(g.type));
  }
}

cublasLtEpilogue_t epilogue_of(const Gemm& g) {
  switch (g.epilogue) {
    case Epilogue::relu: return g.has_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Epilogue::gelu_tanh: return g.has_bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    default: return g.has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
}

// alpha or beta in the type cuBLASLt wants them in.
class Scale {
 public:
  Scale(Type type, float value) {
    if (type == Type::f64)
      double_ = value;
    else if (type == Type::i8)
      int_ = int32_t(value);
    else
      float_ = value;
  }
  const void* address() const { return &float_; }

 private:
  union {
    float float_;
    double double_;
    int32_t int_;
  };
};

struct Pointers {
  const void *a, *b, *bias;
  void* c;
};

// A problem, with what algorithms may take for granted of its addresses.
struct Problem {
  Gemm gemm;
  uint32_t align_a, align_b, align_c, align_bias;

  Problem(const Gemm& g, const Pointers& at)
      : gemm(g),
        align_a(alignment(at.a)),
        align_b(alignment(at.b)),
        align_c(alignment(at.c)),
        align_bias(alignment(at.bias)) {}
  bool operator==(const Problem&) const = default;

  static uint32_t alignment(const void* address) {
    return uint32_t{1} << std::min(std::countr_zero(reinterpret_cast<uintptr_t>(address)), 8);
  }
};

struct Hash {
  size_t operator()(const Problem& p) const {
    const Gemm& g = p.gemm;
    const uint64_t flags = uint64_t(g.type) | uint64_t(g.output) << 8 | uint64_t(g.epilogue) << 16 |
                           uint64_t(g.transpose_a) << 24 | uint64_t(g.transpose_b) << 25 | uint64_t(g.has_bias) << 26 |
                           uint64_t(g.tf32) << 27;
    const uint64_t scales = uint64_t(std::bit_cast<uint32_t>(g.alpha)) << 32 | std::bit_cast<uint32_t>(g.beta);
    const uint64_t aligned =
        uint64_t(p.align_a) | uint64_t(p.align_b) << 16 | uint64_t(p.align_c) << 32 | uint64_t(p.align_bias) << 48;
    uint64_t hash = 0;
    for (const uint64_t part : {uint64_t(g.m), uint64_t(g.n), uint64_t(g.k), uint64_t(g.lda), uint64_t(g.ldb),
                                uint64_t(g.ldc), uint64_t(g.batch), uint64_t(g.stride_a), uint64_t(g.stride_b),
                                uint64_t(g.stride_c), flags, scales, aligned}) {
      hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

// Everything a call needs, made once. Plain bytes: nothing to destroy, and a thread may copy them to change them.
struct Prepared {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c;
  cublasLtMatmulAlgo_t algorithm;
};

template <class T>
void set(cublasLtMatmulDescOpaque_t& operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(lt().set_operation(&operation, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute", {});
}
template <class T>
void set(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check(lt().set_preference(&preference, attribute, &value, sizeof value), "cublasLtMatmulPreferenceSetAttribute", {});
}

// A stored row-major matrix, which is a column-major one with rows and columns swapped.
cublasLtMatrixLayoutOpaque_t layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t distance, int64_t batch,
                                    int64_t stride) {
  cublasLtMatrixLayoutOpaque_t made{};
  check(lt().init_layout(&made, sizeof made, type, uint64_t(columns), uint64_t(rows), distance),
        "cublasLtMatrixLayoutInit", {});
  const int32_t count = int32_t(batch);
  check(lt().set_layout(&made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
        "cublasLtMatrixLayoutSetAttribute", {});
  check(lt().set_layout(&made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
        "cublasLtMatrixLayoutSetAttribute", {});
  return made;
}

[[noreturn]] void no_algorithm(const Gemm& g) {
  const bool integers = g.type == Type::i8;
  fail(Code::not_supported, describe(g), ": cuBLASLt has no algorithm for it",
       integers ? "; 8-bit integers want lda, ldb, ldc, n and k that are multiples of 4, addresses aligned to 4 bytes, "
                  "and with some "
                  "versions a not transposed and b transposed"
                : "",
       ", lda, ldb, ldc are ", g.lda, ", ", g.ldb, ", ", g.ldc);
}

Prepared prepare(cublasLtHandle_t handle, const Problem& problem, const Pointers& at) {
  const Gemm& g = problem.gemm;
  const Types types = types_of(g);
  if (g.batch > INT32_MAX) fail(Code::not_supported, describe(g), ": cuBLASLt counts batches in 31 bits");
  Prepared made{};
  check(lt().init_operation(&made.operation, sizeof made.operation, types.compute, types.scale),
        "cublasLtMatmulDescInit", describe(g));
  set(made.operation, CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(made.operation, CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(made.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(g));
  if (g.has_bias) {
    set(made.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, types.result);
    set(made.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias);
  }
  made.a = layout(types.value, g.transpose_a ? g.k : g.m, g.transpose_a ? g.m : g.k, g.lda, g.batch, g.stride_a);
  made.b = layout(types.value, g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, g.ldb, g.batch, g.stride_b);
  made.c = layout(types.result, g.m, g.n, g.ldc, g.batch, g.stride_c);

  cublasLtMatmulPreferenceOpaque_t preference{};
  check(lt().init_preference(&preference, sizeof preference), "cublasLtMatmulPreferenceInit", {});
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kAlgorithmBytes});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, problem.align_b);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, problem.align_a);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, problem.align_c);
  // Partial sums are added in float, never in the narrower type of the result.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  // There is no preference for the bias, which the epilogue may read as wide as it writes the result.
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::min(problem.align_c, problem.align_bias));

  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status =
      lt().heuristic(handle, &made.operation, &made.b, &made.a, &made.c, &made.c, &preference, 1, &best, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) no_algorithm(g);
  check(status, "cublasLtMatmulAlgoGetHeuristic", describe(g));
  check(best.state, "cublasLtMatmulAlgoGetHeuristic", describe(g));
  made.algorithm = best.algo;
  return made;
}

}  // namespace

struct Blas::State {
  cublasLtHandle_t handle = nullptr;
  std::shared_mutex mutex;  // of the map; what it holds stays where it is and doesn't change
  std::unordered_map<Problem, Prepared, Hash> prepared;

  Prepared& find(const Problem& problem,
                 const Pointers& at) {  // not const, for the library asks for it so; nobody writes
    {
      std::shared_lock lock(mutex);
      if (auto known = prepared.find(problem); known != prepared.end()) return known->second;
    }
    const Prepared made = prepare(handle, problem, at);
    std::unique_lock lock(mutex);
    return prepared.try_emplace(problem, made).first->second;
  }
};

Blas::Blas(int device) : state_(std::make_unique<State>()) {
  const auto create = lt().create;
  const Current current(device);
  const RelaxedCapture relaxed;  // a first product may come while this thread captures
  check(create(&state_->handle), "cublasLtCreate", {});
}

Blas::~Blas() {
  // A handle that can't be given back is lost with the process; there is nothing else to do about it.
  if (state_->handle) lt().destroy(state_->handle);
}

size_t Blas::workspace_bytes() const { return kAlgorithmBytes + kZeroBytes; }

void Blas::gemm(StreamRef stream, const Gemm& g, const void* a, const void* b, void* c, const void* bias,
                void* workspace) {
  device::check(g);
  if (g.m == 0 || g.n == 0 || g.batch == 0) return;
  if (!workspace) fail(Code::internal, describe(g), ": no workspace was given");
  if (g.has_bias != (bias != nullptr))
    fail(Code::internal, describe(g), ": has_bias and the bias given contradict each other");

  if (g.k == 0) {  // cuBLASLt wants some depth: multiply zeros, deep enough for 8-bit integers
    Gemm flat = g;
    flat.k = flat.lda = flat.ldb = 16;
    flat.transpose_a = false;
    flat.transpose_b = true;
    flat.stride_a = flat.stride_b = 0;
    const size_t bytes = size_t(std::max(g.m, g.n)) * 16 * size_bytes(g.type);
    if (bytes > kZeroBytes) fail(Code::not_supported, describe(g), ": too large for a product without depth");
    void* zeros = static_cast<char*>(workspace) + kAlgorithmBytes;
    fill(stream, zeros, 0, bytes);
    return gemm(stream, flat, zeros, zeros, c, bias, workspace);
  }

  const Pointers at{a, b, bias, c};
  Prepared& known = state_->find(Problem(g, at), at);
  cublasLtMatmulDescOpaque_t* operation = &known.operation;
  cublasLtMatmulDescOpaque_t own;  // other threads may be using the shared one with their bias
  if (bias) {
    own = known.operation;
    set(own, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    operation = &own;
  }
  const Scale alpha(g.type, g.alpha), beta(g.type, g.beta);
  const cublasStatus_t status =
      lt().matmul(state_->handle, operation, alpha.address(), b, &known.b, a, &known.a, beta.address(), c, &known.c, c,
                  &known.c, &known.algorithm, workspace, kAlgorithmBytes, static_cast<cudaStream_t>(stream.native()));
  if (status != CUBLAS_STATUS_SUCCESS) check(status, "cublasLtMatmul", describe(g));
  cuda::note_capture(stream);
}

}  // namespace encore::device
