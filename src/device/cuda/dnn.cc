// Convolutions by cuDNN's graph API. One graph holds the convolution and what follows it; where cuDNN has no engine for
// the whole, the convolution alone.
#include "device/dnn.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "device/cuda/capture.h"
#include "device/cuda/dnn_handle.h"
#include "device/cuda/stopwatch.h"
#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"
#include "device/memory.h"

namespace encore::device {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

constexpr uintptr_t kAlignment = 16;  // what the frontend promises for every tensor

// Tensors by their id; addresses are handed over in this order.
enum Id : int64_t { kX = 1, kW, kResidual, kBias, kY };

struct Hash {
  size_t operator()(const Convolution& p) const {
    uint64_t hash = uint64_t(p.type) | uint64_t(p.groups) << 8 | uint64_t(p.transposed) << 40 |
                    uint64_t(p.has_bias) << 41 | uint64_t(p.has_residual) << 42 | uint64_t(p.relu) << 43 |
                    uint64_t(p.tf32) << 44 | uint64_t(p.channels_last) << 45;
    for (const auto* list : {&p.x, &p.w, &p.y, &p.pads_begin, &p.pads_end, &p.strides, &p.dilations})
      for (const int64_t value : *list) {
        hash = (hash ^ uint64_t(value)) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
      }
    return hash;
  }
};

struct Plan {
  fe::graph::Graph graph;
  int64_t candidate = -1;  // of the graph's execution plans; -1: the one that the heuristics chose
  size_t workspace_bytes = 0;
  bool fused = true;
  int timed = 0;                                           // candidates
  float time_us = std::numeric_limits<float>::infinity();  // if any was
  std::string engine;
  bool rival_won = false;
};

// What is handed to a plan: addresses in the order of their ids.
struct Addresses {
  void* list[5];
  int count = 0;
  void add(const void* address) { list[count++] = const_cast<void*>(address); }
};

void check(const Convolution& p) {
  const size_t spatial = p.x.size() < 3 ? 0 : p.x.size() - 2;
  require(spatial >= 1 && spatial <= 3 && p.w.size() == p.x.size() && p.y.size() == p.x.size() &&
              p.pads_begin.size() == spatial && p.pads_end.size() == spatial && p.strides.size() == spatial &&
              p.dilations.size() == spatial,
          describe(p), ": one to three spatial dimensions are wanted, of the same number everywhere");
  for (const auto* dims : {&p.x, &p.w})
    for (const int64_t size : *dims) require(size > 0, describe(p), ": a dimension of x or w is ", size);
  for (size_t i = 0; i < spatial; ++i)
    require(p.strides[i] > 0 && p.dilations[i] > 0 && p.pads_begin[i] >= 0 && p.pads_end[i] >= 0, describe(p),
            ": cuDNN takes no negative pads, and strides and dilations from 1 on");
  const int64_t per_group = p.w[1];
  const bool fits = p.groups > 0 && p.x[0] == p.y[0] &&
                    (p.transposed ? p.w[0] == p.x[1] && per_group * p.groups == p.y[1] && p.x[1] % p.groups == 0
                                  : p.w[0] == p.y[1] && per_group * p.groups == p.x[1] && p.y[1] % p.groups == 0);
  require(fits, describe(p), ": batch, channels and groups don't fit together");
}

fe::DataType_t type_of(const Convolution& p) {
  switch (p.type) {
    case Type::f32: return fe::DataType_t::FLOAT;
    case Type::f16: return fe::DataType_t::HALF;
    case Type::bf16: return fe::DataType_t::BFLOAT16;
    default: fail(Code::not_supported, describe(p), ": no such type in cuDNN");
  }
}

std::vector<int64_t> packed(const std::vector<int64_t>& dims, bool channels_last) {
  std::vector<int64_t> strides(dims.size());
  int64_t step = 1;
  const auto take = [&](size_t i) {
    strides[i] = step;
    step *= dims[i];
  };
  if (channels_last) take(1);
  for (size_t i = dims.size(); i-- > 2;) take(i);
  if (!channels_last) take(1);
  take(0);
  return strides;
}

void check(const fe::error_t& result) {
  if (result.is_bad()) throw std::runtime_error(result.err_msg);
}

// Throws std::exception with the frontend's words if no engine does it.
std::unique_ptr<Plan> build(cudnnHandle_t handle, int sm_version, const DnnSettings& settings, const Convolution& p,
                            bool fused, bool deterministic) {
  auto plan = std::make_unique<Plan>();
  plan->fused = fused;
  fe::graph::Graph& graph = plan->graph;
  const fe::DataType_t type = type_of(p);
  graph.set_io_data_type(type)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  graph.set_sm_version(sm_version);  // else the frontend would ask a CUDA runtime of its own

  // cuDNN wants at least two spatial dimensions.
  const auto widened = [&](std::vector<int64_t> values, int64_t neutral) {
    if (p.x.size() == 3) values.insert(values.end() - (settings.lines_are_rows ? 1 : 0), neutral);
    return values;
  };
  const auto tensor = [&](Id id, const char* name, const std::vector<int64_t>& dims) {
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_name(name)
                            .set_uid(id)
                            .set_dim(dims)
                            .set_stride(packed(dims, p.channels_last))
                            .set_data_type(type));
  };
  const std::vector<int64_t> y_dims = widened(p.y, 1);
  const auto shaped = [&](Tensor made) {
    made->set_dim(y_dims).set_stride(packed(y_dims, p.channels_last));
    return made;
  };
  const auto with_shape = [&](auto attributes) {
    attributes.set_pre_padding(widened(p.pads_begin, 0))
        .set_post_padding(widened(p.pads_end, 0))
        .set_stride(widened(p.strides, 1))
        .set_dilation(widened(p.dilations, 1));
    return attributes;
  };
  const auto pointwise = [](fe::PointwiseMode_t mode) { return fe::graph::Pointwise_attributes().set_mode(mode); };

  const Tensor x = tensor(kX, "x", widened(p.x, 1)), w = tensor(kW, "w", widened(p.w, 1));
  Tensor last = shaped(p.transposed ? graph.conv_dgrad(x, w, with_shape(fe::graph::Conv_dgrad_attributes()))
                                    : graph.conv_fprop(x, w, with_shape(fe::graph::Conv_fprop_attributes())));
  if (fused) {  // in the order for which cuDNN has compiled engines
    if (p.has_residual)
      last = shaped(graph.pointwise(last, tensor(kResidual, "residual", y_dims), pointwise(fe::PointwiseMode_t::ADD)));
    if (p.has_bias) {
      std::vector<int64_t> dims(y_dims.size(), 1);
      dims[1] = y_dims[1];
      last = shaped(graph.pointwise(last, tensor(kBias, "bias", dims), pointwise(fe::PointwiseMode_t::ADD)));
    }
    if (p.relu) last = shaped(graph.pointwise(last, pointwise(fe::PointwiseMode_t::RELU_FWD)));
  }
  last->set_name("y").set_uid(kY).set_output(true).set_data_type(type);

  check(graph.validate());
  check(graph.build_operation_graph(handle));
  std::vector<fe::HeurMode_t> modes{fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK};
  if (settings.search == DnnSearch::standard) std::reverse(modes.begin(), modes.end());
  check(graph.create_execution_plans(modes));
  std::vector<fe::NumericalNote_t> unwanted;
  if (deterministic) unwanted.push_back(fe::NumericalNote_t::NONDETERMINISTIC);
  if (p.type == Type::f32) {
    unwanted.push_back(fe::NumericalNote_t::DOWN_CONVERT_INPUTS);
    if (!p.tf32) unwanted.push_back(fe::NumericalNote_t::TENSOR_CORE);
  }
  graph.deselect_numeric_notes(unwanted).deselect_workspace_greater_than(
      int64_t(std::min<size_t>(settings.most_workspace_bytes, std::numeric_limits<int64_t>::max())));
  check(graph.check_support());
  check(graph.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE));
  int64_t bytes = 0;
  check(graph.get_workspace_size(bytes));
  plan->workspace_bytes = size_t(std::max<int64_t>(bytes, 0));
  check(graph.get_plan_name(plan->engine));
  return plan;
}

fe::error_t execute(cudnnHandle_t handle, const Plan& plan, Addresses& addresses, void* workspace) {
  if (plan.candidate < 0) return plan.graph.execute(handle, addresses.list, addresses.count, workspace);
  return plan.graph.execute_plan_at_index(handle, addresses.list, addresses.count, workspace, plan.candidate);
}

}  // namespace

struct Dnn::State : DnnHandle {
  std::unordered_map<Convolution, std::unique_ptr<Plan>, Hash> plans;  // null: cuDNN has no engine
  bool warned = false;

  bool available() {
    if (opened()) return true;
    if (!warned) warn_of_absence(settings, missing);
    warned = true;
    return false;
  }

  // The convolution and what follows it as one, or alone: whichever is faster if measured, else as the settings say;
  // the other where cuDNN has no such engine. If all else fails, one whose sums may differ from run to run. Null if
  // there is none.
  std::unique_ptr<Plan> build_best(StreamRef wanted, const Convolution& problem, const Rival& rival) {
    const Current current(device);
    const RelaxedCapture relaxed;  // another stream of this thread may be capturing
    const bool alone = !problem.has_bias && !problem.has_residual && !problem.relu;
    std::string reasons;
    std::unique_ptr<Plan> best;
    const bool first = alone || settings.measures() || settings.always_fuse;
    for (const auto& [fused, deterministic] : {std::pair{first, true}, {!first, true}, {alone, false}}) {
      if ((!fused && alone) || (!deterministic && settings.deterministic)) continue;
      if (best && (!deterministic || !settings.measures() || settings.always_fuse)) break;
      try {
        std::unique_ptr<Plan> plan = build(handle, sm_version, settings, problem, fused, deterministic);
        if (settings.measures()) measure(*plan, problem);
        if (!plan->fused) plan->time_us += time_of_rest_us(problem);
        if (!best || plan->time_us < best->time_us) best = std::move(plan);
      } catch (const Error&) {
        throw;
      } catch (const std::exception& error) {
        reasons +=
            text("\n  ", fused ? "as one" : "alone", deterministic ? "" : ", nondeterministic", ": ", error.what());
      }
    }
    cudaGetLastError();
    if (best && rival && settings.measures()) best->rival_won = time_of_us(wanted, rival) < best->time_us;
    if (!best && settings.warn)
      settings.warn(text(describe(problem), " runs as a matrix product, which is slower, for cuDNN has no ",
                         settings.deterministic ? "deterministic " : "", "engine for it:", reasons));
    return best;
  }

  // Of what follows a convolution that is done alone: a launch, and reading and writing y. For choosing, not for show.
  static float time_of_rest_us(const Convolution& problem) {
    double bytes = double(size_bytes(problem.type));
    for (const int64_t size : problem.y) bytes *= double(size);
    return float(2 + 2 * bytes / 3.5e6);
  }

  // Infinite if there is no memory or no algorithm for it.
  static double time_of_us(StreamRef stream, const Rival& rival) {
    try {
      rival();  // what is prepared once does not count
      cuda::Stopwatch watch;
      const auto native = static_cast<cudaStream_t>(stream.native());
      return watch.measure(native, watch.glance(native, rival), rival);
    } catch (const Error& error) {
      if (error.code() != Code::out_of_memory && error.code() != Code::not_supported) throw;
      return std::numeric_limits<double>::infinity();
    }
  }

  // Runs candidates, all of them briefly, then those that did best for longer, and keeps the fastest. Without memory
  // for it the heuristics' choice stays.
  void measure(Plan& plan, const Convolution& problem) {
    // Many, unless building them takes too long: cuDNN compiles some.
    // Behind the first ones are some that give grouped convolutions misaligned addresses.
    constexpr int64_t kLeastCandidates = 8;
    const int64_t kMostCandidates = problem.groups == 1 ? 24 : kLeastCandidates;
    constexpr std::chrono::milliseconds kLongest(50);
    constexpr size_t kFinalists = 3;
    std::vector<std::shared_ptr<void>> operands;
    const Stream side(device);
    const auto operand = [&](const std::vector<int64_t>& dims) {
      size_t bytes = size_bytes(problem.type);
      for (const int64_t size : dims) bytes *= size_t(size);
      operands.push_back(settings.memory(bytes));
      fill(side, operands.back().get(), 0x2c, bytes);  // small numbers in every type
      return operands.back().get();
    };
    Addresses addresses;
    try {
      addresses.add(operand(problem.x));
      addresses.add(operand(problem.w));
      if (plan.fused && problem.has_residual) addresses.add(operand(problem.y));
      if (plan.fused && problem.has_bias) addresses.add(operand({problem.y[1]}));
      addresses.add(operand(problem.y));
    } catch (const Error& error) {
      side.ref().synchronize();
      if (error.code() != Code::out_of_memory) throw;
      return;
    }
    cuda::Stopwatch watch;
    const struct Leave {  // the side stream goes
      StreamRef& stream;
      ~Leave() { stream = {}; }
    } leave{stream};
    use(side);
    const auto native = static_cast<cudaStream_t>(side.ref().native());
    struct Timed {
      int64_t candidate, bytes;
      double us;
    };
    std::vector<Timed> timed;
    const auto runner = [&](int64_t candidate, void* workspace) {
      return [&, candidate, workspace] {
        return plan.graph.execute_plan_at_index(handle, addresses.list, addresses.count, workspace, candidate)
            .is_good();
      };
    };
    const auto begin = std::chrono::steady_clock::now();
    const int64_t count = std::min(plan.graph.get_execution_plan_count(), kMostCandidates);
    for (int64_t i = 0; i < count; ++i) {
      if (i >= kLeastCandidates && std::chrono::steady_clock::now() - begin > kLongest) break;
      int64_t bytes = 0;
      if (plan.graph.build_plan_at_index(i).is_bad() || plan.graph.get_workspace_size_plan_at_index(i, bytes).is_bad())
        continue;
      const std::optional<std::shared_ptr<void>> workspace = workspace_of(bytes);
      if (!workspace) continue;
      const auto run = runner(i, workspace->get());
      if (run()) timed.push_back({i, bytes, watch.glance(native, run)});
    }
    plan.timed = int(timed.size());
    std::ranges::stable_sort(timed, {}, &Timed::us);
    timed.resize(std::min(timed.size(), kFinalists));
    for (Timed& one : timed) {
      if (timed.size() == 1) break;
      if (const auto workspace = workspace_of(one.bytes))
        one.us = watch.measure(native, one.us, runner(one.candidate, workspace->get()));
    }
    if (!timed.empty()) {
      const Timed& fastest = *std::ranges::min_element(timed, {}, &Timed::us);
      plan.candidate = fastest.candidate;
      plan.workspace_bytes = size_t(std::max<int64_t>(fastest.bytes, 0));
      plan.time_us = float(fastest.us);
      check(plan.graph.get_plan_name_at_index(plan.candidate, plan.engine));
    }
    side.ref().synchronize();
  }

  // Nothing if there is no memory for it.
  std::optional<std::shared_ptr<void>> workspace_of(int64_t bytes) const {
    if (bytes <= 0) return nullptr;
    try {
      return settings.memory(size_t(bytes));
    } catch (const Error& error) {
      if (error.code() != Code::out_of_memory) throw;
      return std::nullopt;
    }
  }

  // Null if cuDNN has no engine.
  Plan* find(StreamRef wanted, const Convolution& problem, const Rival& rival = {}) {
    if (auto known = plans.find(problem); known != plans.end()) return known->second.get();
    if (wanted.capture_status() != CaptureStatus::none)
      cuda::forbid(wanted, "cuDNN has no plan for this convolution yet; run once with these shapes before capturing",
                   "cudnnBackendFinalize");
    check(problem);
    if (!available()) fail(Code::library_missing, missing);
    return plans.emplace(problem, build_best(wanted, problem, rival)).first->second.get();
  }
};

Dnn::Dnn(int device, DnnSettings settings) : state_(std::make_unique<State>()) {
  state_->device = device;
  state_->settings = std::move(settings);
  if (!state_->settings.memory)
    state_->settings.memory = [device](size_t bytes) {
      return std::shared_ptr<void>(allocate(device, bytes), [device](void* address) { free(device, address); });
    };
}

Dnn::~Dnn() = default;

const DnnSettings& Dnn::settings() const { return state_->settings; }
DnnHandle& Dnn::handle() { return *state_; }

bool Dnn::available(std::string* why) {
  const std::lock_guard lock(state_->mutex);
  const bool is = state_->available();
  if (why && !is) *why = state_->missing;
  return is;
}

std::optional<Dnn::Prepared> Dnn::prepare(StreamRef stream, const Convolution& problem, const Rival& rival) {
  for (const int64_t size : problem.y)
    if (size == 0) return Prepared{0, true, 0, {}};
  const std::lock_guard lock(state_->mutex);
  const Plan* plan = state_->find(stream, problem, rival);
  if (!plan) return std::nullopt;
  return Prepared{plan->workspace_bytes, plan->fused, plan->timed, plan->engine, plan->rival_won};
}

void Dnn::run(StreamRef stream, const Convolution& problem, const void* x, const void* w, const void* bias,
              const void* residual, void* y, void* workspace) {
  for (const int64_t size : problem.y)
    if (size == 0) return;
  const std::lock_guard lock(state_->mutex);
  Plan* const found = state_->find(stream, problem);
  if (!found) fail(Code::not_supported, describe(problem), ": cuDNN has no engine for it");
  Plan& plan = *found;

  Addresses addresses;
  const auto add = [&](const void* address, const char* name) {
    require(reinterpret_cast<uintptr_t>(address) % kAlignment == 0, name, " at ", address, " is not aligned to ",
            kAlignment, " bytes, as cuDNN wants it: bind a buffer which is");
    if (!address) fail(Code::internal, describe(problem), ": no address of ", name, " was given");
    addresses.add(address);
  };
  add(x, "x");
  add(w, "w");
  if (plan.fused && problem.has_residual) add(residual, "residual");
  if (plan.fused && problem.has_bias) add(bias, "bias");
  add(y, "y");
  if (plan.workspace_bytes > 0 && !workspace) fail(Code::internal, describe(problem), ": no workspace was given");

  state_->use(stream);
  std::string failure;
  try {
    const fe::error_t result = execute(state_->handle, plan, addresses, workspace);
    if (result.is_good()) return cuda::note_capture(stream);
    failure = result.err_msg;
  } catch (const std::exception& error) {
    failure = error.what();
  }
  raise_execution_failure(describe(problem), failure);
}

}  // namespace encore::device
