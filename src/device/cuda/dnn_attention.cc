// Attention by cuDNN's graph API. cuDNN's own heuristics choose the engine: there is little to choose from.
#include "device/dnn_attention.h"

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "device/cuda/capture.h"
#include "device/cuda/dnn_frontend.h"
#include "device/cuda/dnn_handle.h"
#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"
#include "device/rehearsal.h"

namespace encore::device {

struct AttentionPlan {
  fe::graph::Graph graph;
  size_t workspace_bytes = 0;
};
// Null: cuDNN has no engine.
struct AttentionPlans {
  std::map<FusedAttention, std::unique_ptr<AttentionPlan>> of;
};

namespace {

// Tensors by their id; addresses are handed over in this order.
enum Id : int64_t { kQ = 1, kK, kV, kBias, kQueryLengths, kKeyLengths, kY };

// Throws std::exception with the frontend's words if no engine does it.
std::unique_ptr<AttentionPlan> build(const DnnHandle& dnn, const FusedAttention& p) {
  auto plan = std::make_unique<AttentionPlan>();
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
  attributes.set_diagonal_alignment(p.bottom_right ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
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
    const int64_t row = p.keys, head = row * p.bias_queries;
    attributes.set_bias(tensor(kBias, "bias", {p.bias_batch, p.bias_heads, p.bias_queries, p.keys},
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
  return plan;
}

// What cuDNN could do; whether it has an engine it says itself.
bool may_serve(const DnnSettings& settings, const FusedAttention& p) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return settings.wanted && settings.attention && (p.type == Type::f16 || p.type == Type::bf16) &&
         std::min({p.batch, p.heads, p.kv_heads, p.queries, p.keys, p.head_size, p.value_size}) > 0 &&
         std::max({p.left, p.right, p.queries, p.keys}) < kMost;
}

AttentionPlan* find(DnnHandle& dnn, StreamRef stream, const FusedAttention& problem) {
  if (!may_serve(dnn.settings, problem) || !dnn.opened()) return nullptr;
  if (!dnn.attention) dnn.attention = std::make_shared<AttentionPlans>();
  auto& plans = dnn.attention->of;
  if (const auto known = plans.find(problem); known != plans.end()) return known->second.get();
  if (stream.capture_status() != CaptureStatus::none && !RehearsalScope::is_open())
    cuda::forbid(stream, "cuDNN has no plan for this attention yet; run once with these shapes before capturing",
                 "cudnnBackendFinalize");
  const Current current(dnn.device);
  const RelaxedCapture relaxed;  // another stream of this thread may be capturing
  std::unique_ptr<AttentionPlan> plan;
  try {
    plan = build(dnn, problem);
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
  const AttentionPlan* plan = find(handle, stream, problem);
  if (!plan) return std::nullopt;
  return plan->workspace_bytes;
}

void run_attention(Dnn& dnn, StreamRef stream, const FusedAttention& problem, const AttentionAddresses& addresses,
                   void* workspace, bool is_cleared) {
  DnnHandle& handle = dnn.handle();
  const std::lock_guard lock(handle.mutex);
  AttentionPlan* const plan = find(handle, stream, problem);
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
  if (is_cleared) cuda::note_capture(stream);  // what came before is no part of it
  std::string failure;
  try {
    const fe::error_t result = plan->graph.execute(handle.handle, list, count, workspace);
    if (result.is_good())
      return is_cleared ? cuda::note_cleared(stream, workspace, plan->workspace_bytes) : cuda::note_capture(stream);
    failure = result.err_msg;
  } catch (const std::exception& error) {
    failure = error.what();
  }
  raise_execution_failure(describe(problem), failure);
}

}  // namespace encore::device
