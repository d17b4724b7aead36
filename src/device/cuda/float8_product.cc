// Float8 products by cuBLASLt, which wants them as c' = b' a' of what it thinks are columns: our transposed b as its
// transposed first operand, and our a as its second one.
#include "device/float8_product.h"

#include <array>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "device/cuda/capture.h"
#include "device/cuda/lt.h"
#include "device/device.h"
#include "device/error.h"

namespace encore::device {
namespace {

using cuda::check, cuda::lt, cuda::set;

// Everything a call needs but addresses.
struct Prepared {
  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t a{}, b{}, c{};
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace_bytes = 0;
};

// A way that serves operands without scales may not serve those that have some.
struct Problem {
  Float8Product product;
  bool scales_a, scales_b;
  bool operator==(const Problem&) const = default;
};

struct Hash {
  size_t operator()(const Problem& problem) const {
    const Float8Product& p = problem.product;
    uint64_t hash = uint64_t(p.a) | uint64_t(p.b) << 8 | uint64_t(p.output) << 16 | uint64_t(problem.scales_a) << 24 |
                    uint64_t(problem.scales_b) << 25;
    for (const int64_t part : {p.m, p.n, p.k}) hash = (hash ^ uint64_t(part)) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
  }
};

cudaDataType_t type_of(Type type) {
  switch (type) {
    case Type::f8e4m3: return CUDA_R_8F_E4M3;
    case Type::f8e5m2: return CUDA_R_8F_E5M2;
    case Type::f16: return CUDA_R_16F;
    case Type::bf16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

cublasLtMatrixLayoutOpaque_t layout(Type type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayoutOpaque_t made{};
  check(lt().init_layout(&made, sizeof made, type_of(type), uint64_t(columns), uint64_t(rows), columns),
        "cublasLtMatrixLayoutInit", {});
  return made;
}

void set_scales(Prepared& call, const Float8Operands& at) {
  set(call.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(at.scale_b));
  set(call.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(at.scale_a));
}

// Nothing if the library has no algorithm for it.
std::optional<Prepared> prepare(int device, const Float8Product& p, const Float8Operands& at) {
  Prepared made;
  check(lt().init_operation(&made.operation, sizeof made.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescInit", describe(p));
  set(made.operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(made.operation, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  set_scales(made, at);
  made.a = layout(p.a, p.m, p.k), made.b = layout(p.b, p.n, p.k), made.c = layout(p.output, p.m, p.n);

  cublasLtMatmulPreferenceOpaque_t preference{};
  check(lt().init_preference(&preference, sizeof preference), "cublasLtMatmulPreferenceInit", {});
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{cuda::kMostWorkspaceBytes});
  for (const auto operand : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(preference, operand, uint32_t{16});
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});

  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = lt().heuristic(cuda::lt_handle(device), &made.operation, &made.b, &made.a, &made.c,
                                               &made.c, &preference, 1, &found, &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0 || found.state != CUBLAS_STATUS_SUCCESS) {
    cudaGetLastError();
    return {};
  }
  made.algorithm = found.algo;
  made.workspace_bytes = found.workspaceSize;
  return made;
}

// What is known of the products of a device; what is there stays where it is and doesn't change.
const std::optional<Prepared>& known(int device, const Float8Product& product, const Float8Operands& at) {
  static std::mutex mutex;
  static std::array<std::unordered_map<Problem, std::optional<Prepared>, Hash>, kMaxDevices> all;
  const std::lock_guard lock(mutex);
  auto& of_device = all[size_t(device)];
  const Problem problem{product, at.scale_a != nullptr, at.scale_b != nullptr};
  const auto found = of_device.find(problem);
  if (found != of_device.end()) return found->second;
  const Description description = describe(device);
  const bool has_float8 = description.compute_capability_major * 10 + description.compute_capability_minor >= 89;
  return of_device.emplace(problem, has_float8 ? prepare(device, product, at) : std::nullopt).first->second;
}

}  // namespace

bool takes(int device, const Float8Product& product, const Float8Operands& at) {
  return may_take(product, at) && known(device, product, at).has_value();
}

void multiply(StreamRef stream, const Float8Product& product, const Float8Operands& at, Workspace& workspace) {
  const std::optional<Prepared>& way = known(stream.device(), product, at);
  if (!way) fail(Code::internal, describe(product), " is asked for where it is not taken");
  Prepared call = *way;
  set_scales(call, at);
  void* const scratch = call.workspace_bytes ? workspace.at_least(call.workspace_bytes) : nullptr;
  const float beta = 0;
  check(lt().matmul(cuda::lt_handle(stream.device()), &call.operation, &product.alpha, at.b, &call.b, at.a, &call.a,
                    &beta, at.c, &call.c, at.c, &call.c, &call.algorithm, scratch, call.workspace_bytes,
                    static_cast<cudaStream_t>(stream.native())),
        "cublasLtMatmul", describe(product));
  cuda::note_capture(stream);
}

}  // namespace encore::device
