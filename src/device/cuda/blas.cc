// Matrix products by cuBLASLt, those of few rows by kernels of our own where these are faster. cuBLASLt thinks in
// columns: a row-major matrix is its transpose there, so c = a b is asked for as c' = b' a', and the bias, one value
// for each of our columns, runs along its rows as its epilogues want.
#include "device/blas.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <deque>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "device/cuda/capture.h"
#include "device/cuda/lt.h"
#include "device/cuda/stopwatch.h"
#include "device/device.h"
#include "device/error.h"
#include "device/gemv.h"
#include "device/graph.h"
#include "device/memory.h"
#include "device/open_ahead.h"

namespace encore::device {
namespace {

using cuda::check, cuda::lt, cuda::set;

constexpr int kMostCandidates = 16;  // that are timed

struct Types {
  cudaDataType_t value, result, scale;
  cublasComputeType_t compute;
};
Types types_of(const Gemm& g) {
  const bool wide = g.output == Type::f32;
  switch (g.type) {
    case Type::f64: return {CUDA_R_64F, CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F};
    case Type::f16: return {CUDA_R_16F, wide ? CUDA_R_32F : CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    case Type::bf16: return {CUDA_R_16BF, wide ? CUDA_R_32F : CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F};
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
  const void *a, *b, *bias, *addend;
  void* c;
};

// A problem, with what algorithms may take for granted of its addresses.
struct Problem {
  Gemm gemm;
  uint32_t align_a, align_b, align_c, align_bias, align_addend;

  Problem(const Gemm& g, const Pointers& at)
      : gemm(g),
        align_a(alignment(at.a)),
        align_b(alignment(at.b)),
        align_c(alignment(at.c)),
        align_bias(alignment(at.bias)),
        align_addend(alignment(at.addend)) {}
  bool operator==(const Problem&) const = default;
  bool packed() const { return align_a >= 16 && align_b >= 16; }

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
    const uint64_t aligned = uint64_t(p.align_a) | uint64_t(p.align_b) << 12 | uint64_t(p.align_c) << 24 |
                             uint64_t(p.align_bias) << 36 | uint64_t(p.align_addend) << 48;
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
  size_t workspace_bytes;
  GemvWay own;  // if there is one, the library has no part in it
  double us;    // what tuning has measured
};

// The library's candidates, best first.
struct Candidates {
  std::array<cublasLtMatmulHeuristicResult_t, kMostCandidates> at;
  int count = 0;
};

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

// All but the algorithm.
Prepared describe_call(const Problem& problem, const Pointers& at) {
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
  return made;
}

Candidates candidates(cublasLtHandle_t handle, const Problem& problem, Prepared& call, int most) {
  const Gemm& g = problem.gemm;
  cublasLtMatmulPreferenceOpaque_t preference{};
  check(lt().init_preference(&preference, sizeof preference), "cublasLtMatmulPreferenceInit", {});
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{cuda::kMostWorkspaceBytes});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, problem.align_b);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, problem.align_a);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, problem.align_addend);
  // Partial sums are added in float, never in the narrower type of the result.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  // There is no preference for the bias, which the epilogue may read as wide as it writes the result.
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::min(problem.align_c, problem.align_bias));

  Candidates found;
  const cublasStatus_t status = lt().heuristic(handle, &call.operation, &call.b, &call.a, &call.c, &call.c, &preference,
                                               most, found.at.data(), &found.count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found.count == 0)) no_algorithm(g);
  check(status, "cublasLtMatmulAlgoGetHeuristic", describe(g));
  check(found.at[0].state, "cublasLtMatmulAlgoGetHeuristic", describe(g));
  return found;
}

// A workspace whose beginning is taken, by what the product reads or makes; the rest serves the product.
class TakenFirst final : public Workspace {
 public:
  TakenFirst(Workspace& all, size_t bytes)
      : all_(all), bytes_((bytes + 255) / 256 * 256), taken_(all.at_least(bytes_)) {}
  void* taken() const { return taken_; }
  void* at_least(size_t bytes) override { return static_cast<char*>(all_.at_least(bytes_ + bytes)) + bytes_; }

 private:
  Workspace& all_;
  size_t bytes_;
  void* taken_;
};

// Of the depth, as the library splits it.
int split_of(const Prepared& call) {
  int32_t parts = 1;
  size_t written;
  if (call.own.width == 0)
    check(lt().get_of_algorithm(&call.algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof parts, &written),
          "cublasLtMatmulAlgoConfigGetAttribute", {});
  return std::max(parts, 1);
}

}  // namespace

struct Blas::State {
  struct Known {
    const Prepared* prepared;
    bool settled;  // if not, the library's first choice serves until there is an occasion to tune
  };

  explicit State(BlasSettings settings) : settings(settings) {}
  const BlasSettings settings;
  cublasLtHandle_t handle = nullptr;
  std::shared_mutex mutex;  // of the next three; what is prepared stays where it is and doesn't change
  std::unordered_map<Problem, Known, Hash> known;
  std::unordered_map<Problem, int, Hash> parts;
  std::deque<Prepared> prepared;
  std::mutex tuning;       // one at a time, or they would measure each other
  std::mutex tuned_mutex;  // of `tuned`; not held while the workspace is asked for, which may lead anywhere
  std::vector<TunedProduct> tuned;

  Known find(const Problem& problem) {
    std::shared_lock lock(mutex);
    const auto found = known.find(problem);
    return found == known.end() ? Known{} : found->second;
  }
  Known remember(const Problem& problem, const Prepared& made, bool settled) {
    std::unique_lock lock(mutex);
    return known.insert_or_assign(problem, Known{&prepared.emplace_back(made), settled}).first->second;
  }

  const Prepared& prepare(StreamRef stream, const Problem& problem, const Pointers& at, Workspace& workspace);
  Prepared tune(StreamRef stream, const Problem& problem, const Pointers& at, Prepared call, Workspace& workspace);
  cublasStatus_t multiply(StreamRef stream, const Gemm& g, const Prepared& call, const Pointers& at, void* result,
                          void* workspace) const;
  int choose_parts(StreamRef stream, const Problem& whole, Pointers at, int most, Workspace& workspace);
};

const Prepared& Blas::State::prepare(StreamRef stream, const Problem& problem, const Pointers& at,
                                     Workspace& workspace) {
  const Known before = find(problem);
  if (before.prepared && before.settled) return *before.prepared;
  const bool may_tune = settings.tune && stream.capture_status() == CaptureStatus::none;
  if (before.prepared && !may_tune) return *before.prepared;
  if (may_tune) {
    std::lock_guard lock(tuning);
    if (const Known since = find(problem); since.prepared && since.settled) return *since.prepared;
    return *remember(problem, tune(stream, problem, at, describe_call(problem, at), workspace), true).prepared;
  }
  Prepared made = describe_call(problem, at);
  made.own = gemv_way(problem.gemm, problem.packed(), multiprocessors(stream.device()));
  if (made.own.width) return *remember(problem, made, !settings.tune).prepared;
  const Candidates found = candidates(handle, problem, made, 1);
  made.algorithm = found.at[0].algo;
  made.workspace_bytes = found.at[0].workspaceSize;
  return *remember(problem, made, !settings.tune).prepared;
}

// Runs each candidate, the library's and then ours, on the real operands, into the real result or, where that is an
// operand too, beside it: all of them briefly, then those that did best for longer.
Prepared Blas::State::tune(StreamRef stream, const Problem& problem, const Pointers& at, Prepared call,
                           Workspace& workspace) {
  constexpr size_t kFinalists = 3;
  const Gemm& g = problem.gemm;
  const Candidates found = candidates(handle, problem, call, kMostCandidates);
  const auto begin = std::chrono::steady_clock::now();
  const auto is_over = [&] {
    const auto spent = std::chrono::steady_clock::now() - begin;
    return settings.max_tuning_ms > 0 && spent > std::chrono::milliseconds(settings.max_tuning_ms);
  };
  size_t most_bytes = 0;
  for (int i = 0; i < found.count; ++i) most_bytes = std::max(most_bytes, found.at[size_t(i)].workspaceSize);
  most_bytes = (most_bytes + 255) / 256 * 256;
  const size_t result_bytes = at.addend != at.c || g.beta == 0
                                  ? 0
                                  : size_t((g.batch - 1) * g.stride_c + (g.m - 1) * g.ldc + g.n) * size_bytes(g.output);
  auto* scratch = static_cast<char*>(workspace.at_least(std::max<size_t>(most_bytes + result_bytes, 1)));
  void* result = result_bytes ? scratch + most_bytes : at.c;

  struct Timed {
    Prepared call;
    int rank;  // 0 is the library's own first choice
    double us;
  };
  std::vector<Timed> timed;
  const RelaxedCapture relaxed;  // this thread may be capturing another stream
  cuda::Stopwatch watch;
  const auto native = static_cast<cudaStream_t>(stream.native());
  const auto run = [&] { check(multiply(stream, g, call, at, result, scratch), "cublasLtMatmul", describe(g)); };
  for (int i = 0; i < found.count && (timed.empty() || !is_over()); ++i) {
    const cublasLtMatmulHeuristicResult_t& candidate = found.at[size_t(i)];
    if (candidate.state != CUBLAS_STATUS_SUCCESS) continue;
    call.algorithm = candidate.algo;
    call.workspace_bytes = candidate.workspaceSize;
    if (multiply(stream, g, call, at, result, scratch) != CUBLAS_STATUS_SUCCESS) {
      cudaGetLastError();
      continue;
    }
    timed.push_back({call, int(timed.size()), watch.glance(native, run)});
  }
  if (timed.empty()) no_algorithm(g);
  call.workspace_bytes = 0;
  for (const GemvWay way : gemv_ways(g, problem.packed(), multiprocessors(stream.device()))) {
    if (is_over()) break;
    call.own = way;
    run();
    timed.push_back({call, int(timed.size()), watch.glance(native, run)});
  }
  TunedProduct best{.problem = describe(g), .candidates = int(timed.size()), .first_us = timed[0].us};
  std::ranges::stable_sort(timed, {}, &Timed::us);
  timed.resize(std::min(timed.size(), kFinalists));
  if (timed.size() > 1) {
    for (Timed& one : timed) {
      if (is_over()) break;
      call = one.call;
      one.us = watch.measure(native, one.us, run);
      if (one.rank == 0) best.first_us = one.us;
    }
  }
  const Timed& fastest = *std::ranges::min_element(timed, {}, &Timed::us);
  best.chosen = fastest.rank;
  best.chosen_us = fastest.us;
  call = fastest.call;
  call.us = fastest.us;
  const std::lock_guard lock(tuned_mutex);
  tuned.push_back(best);
  return call;
}

cublasStatus_t Blas::State::multiply(StreamRef stream, const Gemm& g, const Prepared& call, const Pointers& at,
                                     void* result, void* workspace) const {
  if (call.own.width) {
    gemv(stream, g, at.a, at.b, at.addend, result, at.bias, call.own);
    return CUBLAS_STATUS_SUCCESS;
  }
  cublasLtMatmulDescOpaque_t operation = call.operation;  // other threads may be using the shared one with their bias
  if (at.bias) set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias);
  auto a = call.a, b = call.b, c = call.c;  // not const, for the library asks for it so
  const Scale alpha(g.type, g.alpha), beta(g.type, g.beta);
  return lt().matmul(handle, &operation, alpha.address(), at.b, &b, at.a, &a, beta.address(), at.addend, &c, result, &c,
                     &call.algorithm, workspace, call.workspace_bytes, static_cast<cudaStream_t>(stream.native()));
}

int Blas::State::choose_parts(StreamRef stream, const Problem& whole, Pointers at, int most, Workspace& workspace) {
  constexpr double kGain = 0.5;  // in microseconds, by which parts are to be faster: reading them takes longer
  const Gemm& g = whole.gemm;
  if (!settings.tune) return possible_parts(g, split_of(prepare(stream, whole, at, workspace)));
  if (stream.capture_status() != CaptureStatus::none) return 1;
  TakenFirst rest(workspace, size_t(most * g.m * g.n) * sizeof(float));
  at.c = rest.taken();
  at.addend = at.c;
  double best = prepare(stream, whole, at, rest).us - kGain;
  at.bias = nullptr;
  int chosen = 1;
  for (int parts = possible_parts(g, most); parts > 1; parts = possible_parts(g, parts - 1)) {
    const double us = prepare(stream, Problem(in_parts(g, parts), at), at, rest).us;
    if (us < best) best = us, chosen = parts;
  }
  return chosen;
}

void open_blas(int device) noexcept {
  try {
    constexpr int64_t kSize = 256;
    const Gemm gemm{Type::f16, Type::f16, kSize, kSize, kSize, false, false, kSize, kSize, kSize};
    const Problem problem(gemm, {});
    Prepared call = describe_call(problem, {});
    candidates(cuda::lt_handle(device), problem, call, 1);
  } catch (const std::exception&) {
  }
}

Blas::Blas(int device, BlasSettings settings) : state_(std::make_unique<State>(settings)) {
  state_->handle = cuda::lt_handle(device);
}

Blas::~Blas() = default;

std::vector<TunedProduct> Blas::tuned() const {
  const std::lock_guard lock(state_->tuned_mutex);
  return state_->tuned;
}

int Blas::parts_of(StreamRef stream, const Gemm& g, const void* a, const void* b, const void* bias,
                   Workspace& workspace) {
  device::check(g);
  const int most = g.n == 0 ? 1 : possible_parts(g, kMostProductParts);
  if (most == 1) return 1;
  const Pointers at{a, b, bias, nullptr, nullptr};
  const Problem whole(g, at);
  {
    std::shared_lock lock(state_->mutex);
    const auto found = state_->parts.find(whole);
    if (found != state_->parts.end()) return found->second;
  }
  const int parts = state_->choose_parts(stream, whole, at, most, workspace);
  std::unique_lock lock(state_->mutex);
  return state_->parts.emplace(whole, parts).first->second;
}

void Blas::gemm(StreamRef stream, const Gemm& g, const void* a, const void* b, void* c, const void* bias,
                Workspace& workspace, const void* addend) {
  device::check(g);
  if (g.m == 0 || g.n == 0 || g.batch == 0) return;
  if (g.has_bias != (bias != nullptr))
    fail(Code::internal, describe(g), ": has_bias and the bias given contradict each other");

  if (g.k == 0) {  // cuBLASLt wants some depth: multiply zeros, deep enough for 8-bit integers
    Gemm flat = g;
    flat.k = flat.lda = flat.ldb = 16;
    flat.transpose_a = false;
    flat.transpose_b = true;
    flat.stride_a = flat.stride_b = 0;
    const size_t bytes = size_t(std::max(g.m, g.n)) * 16 * size_bytes(g.type);
    TakenFirst rest(workspace, bytes);
    fill(stream, rest.taken(), 0, bytes);
    return gemm(stream, flat, rest.taken(), rest.taken(), c, bias, rest, addend);
  }

  const Pointers at{a, b, bias, addend && g.beta != 0 ? addend : c, c};
  const Prepared& call = state_->prepare(stream, Problem(g, at), at, workspace);
  void* scratch = call.workspace_bytes ? workspace.at_least(call.workspace_bytes) : nullptr;
  const cublasStatus_t status = state_->multiply(stream, g, call, at, c, scratch);
  if (status != CUBLAS_STATUS_SUCCESS) check(status, "cublasLtMatmul", describe(g));
  cuda::note_capture(stream);
}

}  // namespace encore::device
