// Convolutions by cuDNN's graph API. One graph holds the convolution and what follows it; where cuDNN has no engine for
// the whole, the convolution alone.
#include "device/dnn.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "device/cuda/capture.h"
#include "device/cuda/clock.h"
#include "device/cuda/dnn_candidates.h"
#include "device/cuda/dnn_search.h"
#include "device/cuda/graph_part.h"
#include "device/cuda/library.h"
#include "device/cuda/stopwatch.h"
#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"
#include "device/memory.h"
#include "device/open_ahead.h"
#include "device/rehearsal.h"
#include "device/tuning_cache.h"

namespace encore::device {
namespace {

constexpr uintptr_t kAlignment = 16;               // what the frontend promises for every tensor
constexpr std::string_view kVersion = ", cuDNN ";  // before the number, in what is kept of convolutions alone

struct Hash {
  size_t operator()(const Convolution& p) const {
    uint64_t hash = uint64_t(p.type) | uint64_t(p.groups) << 8 | uint64_t(p.transposed) << 40 |
                    uint64_t(p.has_bias) << 41 | uint64_t(p.has_residual) << 42 | uint64_t(p.tf32) << 43 |
                    uint64_t(p.channels_last) << 44 | uint64_t(p.curve) << 45;
    for (const auto* list : {&p.x, &p.w, &p.y, &p.pads_begin, &p.pads_end, &p.strides, &p.dilations})
      for (const int64_t value : *list) {
        hash = (hash ^ uint64_t(value)) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
      }
    return hash;
  }
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

// Where choices hold: the device and the library.
std::string place_of(const DnnHandle& dnn) {
  const auto version = cuda::cudnn().find<decltype(cudnnGetVersion)>("cudnnGetVersion");
  return text(describe(dnn.device).name, ", sm ", dnn.sm_version, kVersion, version(), ": ");
}

// Elementwise kernels are in the same file.
bool keeps_convolutions(const DnnSettings& settings) {
  if (!settings.tuning) return false;
  return std::ranges::any_of(settings.tuning->entries(),
                             [](const auto& entry) { return entry.first.find(kVersion) != std::string::npos; });
}

// cuDNN does so for the first plan: one of those that are kept.
void load_engines(const DnnHandle& dnn) {
  const std::string place = place_of(dnn);
  for (const auto& [key, value] : dnn.settings.tuning->entries()) {
    const auto tuned = key.starts_with(place) ? TunedConvolution::decode(value) : std::nullopt;
    if (!tuned || tuned->plan.empty()) continue;
    const Current current(dnn.device);
    const RelaxedCapture relaxed;
    read_plan(dnn.handle, tuned->plan);
    return;
  }
}

}  // namespace

struct Dnn::State : DnnHandle {
  using Plans = std::unordered_map<Convolution, std::unique_ptr<ConvolutionPlan>, Hash>;
  Plans plans;           // null: cuDNN has no engine
  std::mutex expecting;  // of the next two
  std::vector<Convolution> expected, of_any_batch;
  int batches = 0;  // that the latter have been prepared for
  bool warned = false;
  std::string place;
  std::optional<SessionTuning> kept;
  std::shared_ptr<void> zeros;  // the largest so far
  size_t zero_bytes = 0;
  std::mutex tuned_mutex;  // of `tuned`; not held while memory is asked for, which may lead anywhere
  std::vector<TunedProduct> tuned;

  bool available() {
    const bool was_tried = tried;
    const auto begin = Clock::now();
    if (opened()) {
      if (!was_tried && tells_searches())
        std::fprintf(stderr, "encore: cuDNN opened in %.0f ms\n", seconds_since(begin) * 1e3);
      return true;
    }
    if (!warned) warn_of_absence(settings, missing);
    warned = true;
    return false;
  }

  // ---- what is known from earlier

  std::string key_of(const Convolution& problem) {
    if (place.empty()) place = place_of(*this);
    return place + tuning_key(problem, settings);
  }

  std::optional<TunedConvolution> known(const Convolution& problem) {
    return kept->find(key_of(problem), [](const std::string& value) { return TunedConvolution::decode(value); });
  }

  // ---- plans

  // With all that are expected. The stream is not capturing; null: the search has one of its own.
  void search(const Convolution& problem, StreamRef stream) {
    const Current current(device);
    const RelaxedCapture relaxed;  // another stream of this thread may be capturing
    const Stream side = stream ? Stream() : Stream(device);
    if (!stream) stream = side;
    std::vector<Convolution> problems{problem};
    const std::lock_guard lock(expecting);
    constexpr int kMostBatches = 4;  // who has more may have a new one in every run
    if (!of_any_batch.empty() && batches++ < kMostBatches)
      for (Convolution other : of_any_batch) {
        other.x[0] = other.y[0] = problem.x[0];
        expected.push_back(std::move(other));
      }
    for (Convolution& other : expected)
      if (!plans.contains(other) && std::ranges::find(problems, other) == problems.end())
        problems.push_back(std::move(other));
    expected.clear();
    std::vector<ConvolutionSearch> searches;
    for (const Convolution& one : problems) searches.push_back({&one, known(one)});
    find_plans(*this, searches, stream);
    cudaGetLastError();
    for (ConvolutionSearch& found : searches) {
      if (!found.plan && settings.warn)
        settings.warn(text(describe(*found.problem), " runs as a matrix product, which is slower, for cuDNN has no ",
                           settings.deterministic ? "deterministic " : "", "engine for it:", found.reasons));
      if (found.plan && !found.taken_over) kept->keep(key_of(*found.problem), found.plan->tuned.encode());
      if (found.plan && found.plan->tuned.fused && adds_bias(*found.problem) && !found.problem->has_bias)
        found.plan->zeros = zeros_of(bytes_of({found.problem->y[1]}, found.problem->type), stream);
      if (found.plan) tell(*found.problem, found.plan->tuned);
      plans.emplace(*found.problem, std::move(found.plan));
    }
    kept->save();
  }

  void tell(const Convolution& problem, const TunedConvolution& found) {
    if (found.timed <= 0) return;
    const std::lock_guard lock(tuned_mutex);
    tuned.push_back({describe(problem), found.timed, int(found.candidate), double(found.first_us), double(found.us)});
  }

  // Which plans share.
  std::shared_ptr<void> zeros_of(size_t bytes, StreamRef stream) {
    if (bytes > zero_bytes) {
      std::shared_ptr<void> larger = settings.memory(bytes);
      fill(stream, larger.get(), 0, bytes);
      stream.synchronize();
      zeros = std::move(larger), zero_bytes = bytes;
    }
    return zeros;
  }

  // Whether the rival is faster, which is found out once.
  void compare(StreamRef wanted, const Convolution& problem, ConvolutionPlan& plan, const Rival& rival) {
    TunedConvolution& tuned = plan.tuned;
    tuned.rival_timed = true;
    const double own_us = tuned.us > 0 ? double(tuned.us) : std::numeric_limits<double>::infinity();
    const bool more = problem.has_residual || problem.curve != Convolution::Curve::none;  // than a product does
    if (own_us > (more ? time_of_rest_us(problem) : 0) + least_time_us(problem)) {
      const Current current(device);
      const RelaxedCapture relaxed;
      const auto begin = Clock::now();
      const double rival_us = time_of_us(wanted, rival);
      tuned.rival_won = rival_us < own_us;
      if (tells_searches())
        std::fprintf(stderr, "encore: a product takes %.2f us, cuDNN %.2f us, found in %.1f ms: %s\n", rival_us, own_us,
                     seconds_since(begin) * 1e3, describe(problem).c_str());
    }
    kept->keep(key_of(problem), plan.tuned.encode());
    kept->save();
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

  // Null if there is none.
  ConvolutionPlan* find(StreamRef wanted, const Convolution& problem, const Rival& rival = {}) {
    auto found = plans.find(problem);
    const bool compares = rival && settings.measures();
    if (found != plans.end() && (!found->second || !compares || found->second->tuned.rival_timed))
      return found->second.get();
    const bool captures = wanted.capture_status() != CaptureStatus::none;
    if (captures && found != plans.end()) return found->second.get();  // as found in a rehearsal
    if (captures && !RehearsalScope::is_open())
      cuda::forbid(wanted, "cuDNN has no plan for this convolution yet; run once with these shapes before capturing",
                   "cudnnBackendFinalize");
    if (found == plans.end()) {
      check(problem);
      if (!available()) fail(Code::library_missing, missing);
      search(problem, captures ? StreamRef() : wanted);
      found = plans.find(problem);
    }
    ConvolutionPlan* const plan = found->second.get();
    if (plan && compares && !captures && !plan->tuned.rival_timed) compare(wanted, problem, *plan, rival);
    return plan;
  }
};

Dnn::Dnn(int device, DnnSettings settings) : state_(std::make_unique<State>()) {
  state_->device = device;
  state_->settings = std::move(settings);
  state_->kept.emplace(state_->settings.tuning, state_->settings.warn);
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

void Dnn::expect(const Convolution& problem) {
  if (problem.type != Type::f32 && problem.type != Type::f16 && problem.type != Type::bf16) return;
  if (std::ranges::find(problem.y, 0) != problem.y.end()) return;
  Convolution one = problem;
  const bool any_batch = problem.x.size() > 0 && problem.y.size() > 0 && problem.x[0] < 0 && problem.y[0] < 0;
  if (any_batch) one.x[0] = one.y[0] = 1;
  try {
    check(one);
  } catch (const Error&) {  // prepare() will say so
    return;
  }
  const std::lock_guard lock(state_->expecting);
  (any_batch ? state_->of_any_batch : state_->expected).push_back(problem);
}

void open_dnn(Dnn& dnn) noexcept {
  DnnHandle& handle = dnn.handle();
  const std::lock_guard lock(handle.mutex);
  try {
    if (keeps_convolutions(handle.settings) && handle.opened()) load_engines(handle);
  } catch (const std::exception&) {
  }
}

std::vector<TunedProduct> Dnn::tuned() const {
  const std::lock_guard lock(state_->tuned_mutex);
  return state_->tuned;
}

namespace {

// Kernels that cuDNN has compiled are launched in the stream's context, into which it can't go if that is a green one.
std::optional<std::string> capture(StreamRef stream, cudnnHandle_t handle, const ConvolutionPlan& plan,
                                   std::vector<void*>& addresses, void* workspace) {
  cuda::Part part;
  if (auto why = populate(part.graph(), handle, plan, addresses, workspace)) return why;
  part.add_to(stream);
  return std::nullopt;
}

}  // namespace

std::optional<Dnn::Prepared> Dnn::prepare(StreamRef stream, const Convolution& problem, const Rival& rival) {
  for (const int64_t size : problem.y)
    if (size == 0) return Prepared{0, true, 0, {}};
  const std::lock_guard lock(state_->mutex);
  const ConvolutionPlan* plan = state_->find(stream, problem, rival);
  if (!plan) return std::nullopt;
  const TunedConvolution& tuned = plan->tuned;
  return Prepared{plan->workspace_bytes(), tuned.fused, tuned.timed, tuned.engine, rival && tuned.rival_won};
}

void Dnn::run(StreamRef stream, const Convolution& problem, const void* x, const void* w, const void* bias,
              const void* residual, void* y, void* workspace) {
  for (const int64_t size : problem.y)
    if (size == 0) return;
  const std::lock_guard lock(state_->mutex);
  const ConvolutionPlan* const found = state_->find(stream, problem);
  if (!found) fail(Code::not_supported, describe(problem), ": cuDNN has no engine for it");
  const ConvolutionPlan& plan = *found;
  const bool fused = plan.tuned.fused;

  std::vector<void*> addresses;
  const auto add = [&](const void* address, const char* name) {
    require(reinterpret_cast<uintptr_t>(address) % kAlignment == 0, name, " at ", address, " is not aligned to ",
            kAlignment, " bytes, as cuDNN wants it: bind a buffer which is");
    if (!address) fail(Code::internal, describe(problem), ": no address of ", name, " was given");
    addresses.push_back(const_cast<void*>(address));
  };
  add(x, "x");
  add(w, "w");
  if (fused && problem.has_residual) add(residual, "residual");
  if (fused && adds_bias(problem)) add(problem.has_bias ? bias : plan.zeros.get(), "bias");
  add(y, "y");
  if (plan.workspace_bytes() > 0 && !workspace) fail(Code::internal, describe(problem), ": no workspace was given");

  state_->use(stream);
  std::string failure;
  try {
    const auto result = plan.is_compiled() && cuda::captures_on_green(stream)
                            ? capture(stream, state_->handle, plan, addresses, workspace)
                            : execute(state_->handle, plan, addresses, workspace);
    if (!result) return cuda::note_capture(stream);
    failure = *result;
  } catch (const std::exception& error) {
    failure = error.what();
  }
  raise_execution_failure(describe(problem), failure);
}

}  // namespace encore::device
