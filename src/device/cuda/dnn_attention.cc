// Attention by cuDNN's graph API. There are two kinds of engines, of which the frontend takes the newer one if that
// knows all of a problem, and a band along the diagonal can be said in two ways; which is faster is measured.
#include "device/dnn_attention.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "device/cuda/capture.h"
#include "device/cuda/dnn_handle.h"
#include "device/cuda/stopwatch.h"
#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"
#include "device/memory.h"

namespace encore::device {

namespace fe = cudnn_frontend;

namespace {

struct Plan {
  fe::graph::Graph graph;
  int64_t candidate = -1;  // in the frontend's list; below zero: its choice
  size_t workspace_bytes = 0;
  std::string words;  // for a person
  double us = std::numeric_limits<double>::infinity();

  fe::error_t execute(cudnnHandle_t handle, void** list, int count, void* workspace) const {
    if (candidate < 0) return graph.execute(handle, list, count, workspace);
    return graph.execute_plan_at_index(handle, list, count, workspace, candidate);
  }
};

// How a problem is put to cuDNN.
struct Variant {
  fe::AttentionImplementation_t kind = fe::AttentionImplementation_t::AUTO;
  bool bottom_right = false;
};
const char* name(const Variant& variant) {
  switch (variant.kind) {
    case fe::AttentionImplementation_t::UNIFIED: return "unified";
    case fe::AttentionImplementation_t::COMPOSITE: return variant.bottom_right ? "composite from the end" : "composite";
    default: return "the frontend's choice";
  }
}

// Tensors by their id; addresses are handed over in this order.
enum Id : int64_t { kQ = 1, kK, kV, kBias, kQueryLengths, kKeyLengths, kY };

void check(const fe::error_t& result) {
  if (result.is_bad()) throw std::runtime_error(result.err_msg);
}

// Throws std::exception with the frontend's words if no engine does it.
std::unique_ptr<Plan> build(const DnnHandle& dnn, const FusedAttention& p, const Variant& variant) {
  auto plan = std::make_unique<Plan>();
  fe::graph::Graph& graph = plan->graph;
  const fe::DataType_t type = p.type == Type::f16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16;
  graph.set_io_data_type(type)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  graph.set_sm_version(dnn.sm_version);  // else the frontend would ask a CUDA runtime of its own

  const auto tensor = [&](Id id, const char* name, std::vector<int64_t> dims, std::vector<int64_t> strides,
                          fe::DataType_t of) {
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_name(name)
                            .set_uid(id)
                            .set_dim(std::move(dims))
                            .set_stride(std::move(strides))
                            .set_data_type(of));
  };
  const auto strides = [](const FusedAttention::Strides& s) { return std::vector<int64_t>{s.batch, s.head, s.row, 1}; };
  const auto q = tensor(kQ, "q", {p.batch, p.heads, p.queries, p.head_size}, strides(p.q), type);
  const auto k = tensor(kK, "k", {p.batch, p.kv_heads, p.keys, p.head_size}, strides(p.k), type);
  const auto v = tensor(kV, "v", {p.batch, p.kv_heads, p.keys, p.value_size}, strides(p.v), type);

  auto attributes =
      fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(false).set_attn_scale(p.scale);
  attributes.set_implementation(variant.kind);
  attributes.set_diagonal_alignment(variant.bottom_right ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                                         : fe::DiagonalAlignment_t::TOP_LEFT);
  if (p.left >= 0) attributes.set_diagonal_band_left_bound(int(p.left + 1));  // cuDNN counts the position itself
  if (p.right >= 0) attributes.set_diagonal_band_right_bound(int(p.right));
  if (p.has_lengths) {
    const std::vector<int64_t> dims{p.batch, 1, 1, 1}, ones{1, 1, 1, 1};
    attributes.set_padding_mask(true)
        .set_seq_len_q(tensor(kQueryLengths, "query_lengths", dims, ones, fe::DataType_t::INT32))
        .set_seq_len_kv(tensor(kKeyLengths, "key_lengths", dims, ones, fe::DataType_t::INT32));
  }
  if (p.bias_batch > 0) {
    const int64_t row = p.keys, head = row * p.queries;
    attributes.set_bias(tensor(kBias, "bias", {p.bias_batch, p.bias_heads, p.queries, p.keys},
                               {head * p.bias_heads, head, row, 1}, type));
  }
  const auto y = graph.sdpa(q, k, v, std::move(attributes))[0];
  y->set_name("y")
      .set_uid(kY)
      .set_output(true)
      .set_data_type(type)
      .set_dim({p.batch, p.heads, p.queries, p.value_size})
      .set_stride(strides(p.y));

  check(graph.validate());
  check(graph.build_operation_graph(dnn.handle));
  check(graph.create_execution_plans({fe::HeurMode_t::A}));
  graph.deselect_workspace_greater_than(
      int64_t(std::min<size_t>(dnn.settings.most_workspace_bytes, std::numeric_limits<int64_t>::max())));
  check(graph.check_support());
  check(graph.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE));
  int64_t bytes = 0;
  check(graph.get_workspace_size(bytes));
  plan->workspace_bytes = size_t(std::max<int64_t>(bytes, 0));
  check(graph.get_plan_name(plan->words));
  return plan;
}

// Nothing if there is no memory for it.
std::optional<std::shared_ptr<void>> memory_of(const DnnHandle& dnn, size_t bytes) {
  if (bytes == 0) return nullptr;
  try {
    return dnn.settings.memory(bytes);
  } catch (const Error& error) {
    if (error.code() != Code::out_of_memory) throw;
    return std::nullopt;
  }
}

// Tensors of a problem in memory of their own, with some numbers.
class Operands {
 public:
  Operands(const DnnHandle& dnn, StreamRef stream, const FusedAttention& p) {
    const auto add = [&](const FusedAttention::Strides& s, int64_t heads, int64_t rows, int64_t size) {
      const int64_t last = (p.batch - 1) * s.batch + (heads - 1) * s.head + (rows - 1) * s.row + size;
      add_bytes(dnn, stream, size_t(last) * size_bytes(p.type));
    };
    add(p.q, p.heads, p.queries, p.head_size);
    add(p.k, p.kv_heads, p.keys, p.head_size);
    add(p.v, p.kv_heads, p.keys, p.value_size);
    if (p.bias_batch > 0)
      add_bytes(dnn, stream, size_t(p.bias_batch * p.bias_heads * p.queries * p.keys) * size_bytes(p.type));
    add(p.y, p.heads, p.queries, p.value_size);
  }
  bool complete() const { return complete_; }
  void** list() { return list_; }
  int count() const { return int(held_.size()); }

 private:
  void add_bytes(const DnnHandle& dnn, StreamRef stream, size_t bytes) {
    auto memory = complete_ ? memory_of(dnn, bytes) : std::nullopt;
    complete_ = memory.has_value();
    if (!complete_) return;
    fill(stream, memory->get(), 0x2c, bytes);  // small numbers in every type
    list_[held_.size()] = memory->get();
    held_.push_back(std::move(*memory));
  }
  std::vector<std::shared_ptr<void>> held_;
  void* list_[kY];
  bool complete_ = true;
};

// Times the first of the plan's candidates and keeps the fastest.
void measure(DnnHandle& dnn, cudaStream_t stream, cuda::Stopwatch& watch, Plan& plan, Operands& operands) {
  constexpr int64_t kMostCandidates = 6;
  std::string all;
  const int64_t count = std::min(plan.graph.get_execution_plan_count(), kMostCandidates);
  for (int64_t i = 0; i < count; ++i) {
    int64_t bytes = 0;
    if (plan.graph.build_plan_at_index(i).is_bad() || plan.graph.get_workspace_size_plan_at_index(i, bytes).is_bad())
      continue;
    bytes = std::max<int64_t>(bytes, 0);
    if (size_t(bytes) > dnn.settings.most_workspace_bytes) continue;
    const auto workspace = memory_of(dnn, size_t(bytes));
    if (!workspace) continue;
    const auto run = [&] {
      return plan.graph.execute_plan_at_index(dnn.handle, operands.list(), operands.count(), workspace->get(), i)
          .is_good();
    };
    if (!run()) continue;
    const double us = watch.measure(stream, watch.glance(stream, run), run);
    all += text(all.empty() ? "" : ", ", std::round(us * 10) / 10);
    if (us >= plan.us) continue;
    plan.us = us;
    plan.candidate = i;
    plan.workspace_bytes = size_t(bytes);
    check(plan.graph.get_plan_name_at_index(i, plan.words));
  }
  plan.words += text(" of ", all, " µs");
}

// Whether choosing is worth its time, and can be done with any contents.
bool is_worth_measuring(const DnnSettings& settings, const FusedAttention& p) {
  const double work = 4.0 * double(p.batch * p.heads) * double(p.queries) * double(p.keys) * double(p.head_size);
  return settings.measures() && !p.has_lengths && work > 4e9;
}

// The fastest of all ways to put the problem to cuDNN; the frontend's choice if there is no memory to measure. Throws
// std::exception if none is possible.
std::unique_ptr<Plan> build_fastest(DnnHandle& dnn, const FusedAttention& p) {
  using Kind = fe::AttentionImplementation_t;
  if (!is_worth_measuring(dnn.settings, p)) return build(dnn, p, {Kind::AUTO, p.bottom_right});
  const Stream side(dnn.device);
  Operands operands(dnn, side, p);
  if (!operands.complete()) {
    side.ref().synchronize();
    return build(dnn, p, {Kind::AUTO, p.bottom_right});
  }
  std::vector<Variant> variants{{Kind::COMPOSITE, p.bottom_right}, {Kind::UNIFIED, p.bottom_right}};
  // From the first key and query or from the last: the same if there are as many.
  if ((p.left >= 0 || p.right >= 0) && p.queries == p.keys) variants.push_back({Kind::COMPOSITE, !p.bottom_right});

  const struct Leave {  // the side stream goes
    DnnHandle& dnn;
    ~Leave() { dnn.stream = {}; }
  } leave{dnn};
  dnn.use(side);
  cuda::Stopwatch watch;
  constexpr std::chrono::milliseconds kLongest(1000);
  const auto begin = std::chrono::steady_clock::now();
  std::unique_ptr<Plan> best;
  std::string all;
  for (const Variant& variant : variants) {
    if (best && std::chrono::steady_clock::now() - begin > kLongest) break;
    all += text(all.empty() ? "" : "; ", name(variant), ": ");
    try {
      auto plan = build(dnn, p, variant);
      measure(dnn, static_cast<cudaStream_t>(side.ref().native()), watch, *plan, operands);
      all += plan->words;
      if (!best || plan->us < best->us) best = std::move(plan);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      all += error.what();
    }
  }
  side.ref().synchronize();
  if (!best) throw std::runtime_error(all);
  best->words = std::move(all);
  return best;
}

// What cuDNN could do; whether it has an engine it says itself.
bool may_serve(const DnnSettings& settings, const FusedAttention& p) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return settings.wanted && settings.attention && (p.type == Type::f16 || p.type == Type::bf16) &&
         std::min({p.batch, p.heads, p.kv_heads, p.queries, p.keys, p.head_size, p.value_size}) > 0 &&
         std::max({p.left, p.right, p.queries, p.keys}) < kMost;
}

}  // namespace

// Null: cuDNN has no engine.
struct AttentionPlans {
  std::map<FusedAttention, std::unique_ptr<Plan>> of;
};

namespace {

Plan* find(DnnHandle& dnn, StreamRef stream, const FusedAttention& problem) {
  if (!may_serve(dnn.settings, problem) || !dnn.opened()) return nullptr;
  if (!dnn.attention) dnn.attention = std::make_shared<AttentionPlans>();
  auto& plans = dnn.attention->of;
  if (const auto known = plans.find(problem); known != plans.end()) return known->second.get();
  if (stream.capture_status() != CaptureStatus::none)
    cuda::forbid(stream, "cuDNN has no plan for this attention yet; run once with these shapes before capturing",
                 "cudnnBackendFinalize");
  const Current current(dnn.device);
  const RelaxedCapture relaxed;  // another stream of this thread may be capturing
  std::unique_ptr<Plan> plan;
  try {
    plan = build_fastest(dnn, problem);
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {  // no engine: there are kernels for that
  }
  cudaGetLastError();
  return plans.emplace(problem, std::move(plan)).first->second.get();
}

}  // namespace

std::optional<size_t> prepare_attention(Dnn& dnn, StreamRef stream, const FusedAttention& problem) {
  DnnHandle& handle = dnn.handle();
  const std::lock_guard lock(handle.mutex);
  const Plan* plan = find(handle, stream, problem);
  if (!plan) return std::nullopt;
  return plan->workspace_bytes;
}

std::string attention_plan(Dnn& dnn, const FusedAttention& problem) {
  DnnHandle& handle = dnn.handle();
  const std::lock_guard lock(handle.mutex);
  if (!handle.attention) return {};
  const auto known = handle.attention->of.find(problem);
  return known == handle.attention->of.end() || !known->second ? std::string() : known->second->words;
}

void run_attention(Dnn& dnn, StreamRef stream, const FusedAttention& problem, const AttentionAddresses& addresses,
                   void* workspace) {
  DnnHandle& handle = dnn.handle();
  const std::lock_guard lock(handle.mutex);
  Plan* const plan = find(handle, stream, problem);
  if (!plan) fail(Code::not_supported, describe(problem), ": cuDNN has no engine for it");

  void* list[kY];
  int count = 0;
  const auto add = [&](const void* address, const char* name) {
    require(reinterpret_cast<uintptr_t>(address) % 16 == 0, name, " at ", address,
            " is not aligned to 16 bytes, as cuDNN wants it: bind a buffer which is");
    if (!address) fail(Code::internal, describe(problem), ": no address of ", name, " was given");
    list[count++] = const_cast<void*>(address);
  };
  add(addresses.q, "q");
  add(addresses.k, "k");
  add(addresses.v, "v");
  if (problem.bias_batch > 0) add(addresses.bias, "bias");
  if (problem.has_lengths) {
    add(addresses.query_lengths, "query_lengths");
    add(addresses.key_lengths, "key_lengths");
  }
  add(addresses.y, "y");
  if (plan->workspace_bytes > 0 && !workspace) fail(Code::internal, describe(problem), ": no workspace was given");

  handle.use(stream);
  std::string failure;
  try {
    const fe::error_t result = plan->execute(handle.handle, list, count, workspace);
    if (result.is_good()) return cuda::note_capture(stream);
    failure = result.err_msg;
  } catch (const std::exception& error) {
    failure = error.what();
  }
  raise_execution_failure(describe(problem), failure);
}

}  // namespace encore::device
