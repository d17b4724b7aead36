#include "plugin/ep.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "device/device.h"
#include "device/external_stream.h"
#include "device/graph.h"
#include "device/memory.h"
#include "plugin/capability.h"
#include "plugin/factory.h"
#include "plugin/fence.h"
#include "plugin/report.h"
#include "plugin/stream.h"

namespace encore::plugin {
namespace {

using device::DnnSearch;

// What the calling thread is in the middle of.
struct ThreadRun {
  const Ep* ep = nullptr;
  bool failed = false;
  struct Known {
    void* handle;
    device::StreamRef stream;
  };
  std::vector<Known> streams;  // where its kernels go
  const Ep* repeat = nullptr;  // the session whose last run has to be repeated, since its capture came to nothing
};
thread_local ThreadRun thread_run;

int graph_id_of(const OrtRunOptions* options) {
  const char* const entry = options ? ort().api->GetRunConfigEntry(options, "gpu_graph_id") : nullptr;
  if (!entry) return 0;
  int id = 0;
  const char* const end = entry + std::strlen(entry);
  const auto [stopped, error] = std::from_chars(entry, end, id);
  require(error == std::errc() && stopped == end && id >= graph::kEagerId, "run option 'gpu_graph_id' is '", entry,
          "'; it must be a number from 0, or -1 to run eagerly");
  return id;
}

std::string joined(const std::vector<std::string>& parts, size_t most) {
  std::string all;
  for (size_t i = 0; i < std::min(parts.size(), most); ++i) all += (i ? "; " : "") + parts[i];
  return parts.size() > most ? text(all, "; and ", parts.size() - most, " more") : all;
}

std::string describe(const device::FaultCell& cell) {
  switch (static_cast<device::FaultKind>(cell.kind)) {
    case device::FaultKind::index_out_of_range:
      return text("index ", cell.value, " is outside [", -cell.limit, ", ", cell.limit, ")");
    case device::FaultKind::divide_by_zero: return "an integer was divided by zero";
    default: return text("a value is not allowed: ", cell.value, " (limit ", cell.limit, ")");
  }
}

// Null if the session has several streams.
std::unique_ptr<graph::SharedStream> shared_stream(const Options& options) {
  if (!options.has_user_compute_stream) {
    if (!options.use_ep_level_unified_stream) return nullptr;
    return std::make_unique<graph::SharedStream>(options.device_id);
  }
  try {
    return std::make_unique<graph::SharedStream>(
        device::external_stream(options.user_compute_stream, options.device_id, options.enable_cuda_graph),
        SyncStream::of_application(options.user_compute_stream));
  } catch (const Error& error) {
    throw Error(error.code(), text("provider option 'user_compute_stream': ", error.what()));
  }
}

}  // namespace

Ep::Ep(std::shared_ptr<Factory> factory, Options options, Log log, std::shared_ptr<memory::Arena> arena)
    : OrtEp{},
      factory_(std::move(factory)),
      options_(options),
      log_(log),
      arena_(arena ? std::move(arena)
                   : std::make_shared<memory::Arena>(options.device_id, memory_settings(options), "the session")),
      copies_(options.device_id, !options.do_copy_in_default_stream),
      shared_(shared_stream(options)) {
  if (options_.enable_cuda_graph && !host_has(kGraphCaptureApi))
    log_.warning("enable_cuda_graph needs onnxruntime 1.26 or newer; this is " + ort().text +
                 ", so every run is eager");
  else if (options_.enable_cuda_graph)
    graphs_ = std::make_unique<graph::SessionGraphs>(
        device(), graph::Settings{.enabled = true,
                                  .warm_ups = options_.min_num_runs_before_cuda_graph_capture,
                                  .on_error = options_.graph_on_error,
                                  .warn = [this](const std::string& message) { log_.warning(message); },
                                  .shared = shared_.get(),
                                  .memory = arena_->source()});
  if (options_.sdpa_kernel)
    log_.warning(text("sdpa_kernel=", options_.sdpa_kernel, " chooses nothing: Encore has no kernels of attention"));
  const device::RelaxedCapture relaxed;
  fault_cell_ = new (device::allocate_pinned(sizeof(device::FaultCell))) device::FaultCell;
  fill_callbacks();
}

Ep::~Ep() {
  graphs_.reset();  // these wait for launches that may report faults
  shared_.reset();
  if (ran_elsewhere_) memory::wait_for(memory::tails(device()));
  try {
    const device::RelaxedCapture relaxed;
    device::free_pinned(fault_cell_);
  } catch (const std::exception& error) {
    factory_->log().error(text("the fault cell could not be freed: ", error.what()));
  }
}

Ep& Ep::of(const OrtKernelInfo* kernel) {
  const OrtEp* ep = nullptr;
  check(ort().ep->KernelInfo_GetEp(kernel, &ep));
  Ep& found = from(ep);
  require(found.impossible_.empty(), found.impossible_);
  return found;
}

device::Blas& Ep::blas() {
  if (device::Blas* open = open_blas_.load(std::memory_order_acquire)) return *open;
  const std::lock_guard lock(opening_);
  if (!blas_)
    blas_ = std::make_unique<device::Blas>(device(), device::BlasSettings{.tune = options_.tunable_op_tuning,
                                                                          .max_tuning_ms = options_.tunable_op_max_ms});
  open_blas_.store(blas_.get(), std::memory_order_release);
  return *blas_;
}

device::Dnn& Ep::dnn() {
  if (device::Dnn* open = open_dnn_.load(std::memory_order_acquire)) return *open;
  const std::lock_guard lock(opening_);
  // Timing candidates takes device memory of the process's pool, which an application's allocator has to be the only
  // source of.
  const bool measures = options_.conv_search == ConvSearch::exhaustive && !options_.external.allocate;
  if (!dnn_)
    dnn_ = std::make_unique<device::Dnn>(
        device(), device::DnnSettings{.wanted = options_.enable_cudnn,
                                      .search = measures                                       ? DnnSearch::measured
                                                : options_.conv_search == ConvSearch::standard ? DnnSearch::standard
                                                                                               : DnnSearch::heuristics,
                                      .most_workspace_bytes = size_t(options_.conv_max_workspace ? 1024 : 32) << 20,
                                      .always_fuse = options_.fuse_conv_bias,
                                      .deterministic = options_.deterministic,
                                      .lines_are_rows = options_.conv1d_pad_to_nc1d,
                                      .warn = [log = log_](const std::string& message) { log.warning(message); }});
  open_dnn_.store(dnn_.get(), std::memory_order_release);
  return *dnn_;
}

ops::Settings Ep::settings() const {
  return {.use_tf32 = options_.use_tf32, .strict_skip_layer_norm = options_.strict_skip_layer_norm};
}

void Ep::note_work(device::StreamRef stream) {
  if (!graphs_ && thread_run.ep == this) compute_stream(stream.native());
}

void Ep::order_after_run(device::StreamRef later) {
  const Ep* const ep = thread_run.ep;
  if (!ep || ep->device() != later.device() || ep->capturing()) return;
  device::Event done(later.device());
  const auto order = [&](device::StreamRef earlier) {
    done.record(earlier);
    later.wait(done);
  };
  if (ep->graphs_) order(ep->graphs_->stream());
  for (const auto& known : thread_run.streams) order(known.stream);
}

void Ep::run_failed(const std::string& why, Code code) {
  if (thread_run.ep == this) thread_run.failed = true;
  // Bad input fails the run alone: the next one is captured again.
  if (capturing() && code != Code::invalid_input && code != Code::not_supported) graphs_->refuse(why);
}

int Ep::fault_node(std::string who) {
  const std::lock_guard lock(fault_nodes_mutex_);
  fault_nodes_.push_back(std::move(who));
  return int(fault_nodes_.size());
}

void Ep::check_faults() {
  const std::atomic_ref<int> node(fault_cell_->node);
  const int number = node.load(std::memory_order_acquire);
  if (number == 0) return;
  const device::FaultCell found = *fault_cell_;
  fault_cell_->kind = 0;
  node.store(0, std::memory_order_release);
  const std::lock_guard lock(fault_nodes_mutex_);
  const size_t index = size_t(number) - 1;
  fail(Code::invalid_input, index < fault_nodes_.size() ? fault_nodes_[index] : text("node ", number), ": ",
       describe(found));
}

void Ep::enlist(SyncStream* stream) {
  const std::lock_guard lock(streams_mutex_);
  streams_.insert(stream);
}
void Ep::delist(SyncStream* stream) {
  const std::lock_guard lock(streams_mutex_);
  streams_.erase(stream);
}

graph::SharedStream::Turn Ep::turn() const {
  // Older hosts don't tell whether a run has several threads, which would wait for each other.
  return shared_ && (graphs_ || host_has(kExecutionModeApi)) ? shared_->turn() : graph::SharedStream::Turn();
}

device::StreamRef Ep::compute_stream(void* handle, const OrtKernelContext* context) {
  if (thread_run.ep != this) return find_stream(handle, context);
  auto& known = thread_run.streams;
  const auto seen = std::ranges::find(known, handle, &ThreadRun::Known::handle);
  if (seen != known.end()) return seen->stream;
  return known.emplace_back(handle, find_stream(handle, context)).stream;
}

device::StreamRef Ep::find_stream(void* handle, const OrtKernelContext* context) {
  device::StreamRef given;
  bool own = false;
  if (context && host_has(kKernelSyncStreamApi)) {
    OrtSyncStream* stream = nullptr;
    check(ort().api->KernelContext_GetSyncStream(context, &stream));
    const SyncStream* const mine = SyncStream::from(stream);
    own = mine && mine->ep() == this;
    if (mine) given = mine->ref();
  } else {
    if (const auto found = SyncStream::of_application(handle)) given = *found;
    const std::lock_guard lock(streams_mutex_);
    own = std::ranges::any_of(streams_, [&](const SyncStream* stream) { return stream->handle() == handle; });
  }
  if (shared_ && handle == shared_->ref().native()) own = true;
  if (own) return graphs_ ? graphs_->stream() : device::StreamRef(handle, device());

  require(bool(given),
          "the run was given a stream (RunOptionsSetSyncStream) that is none of Encore's: make it with "
          "CreateSyncStreamForEpDevice for Encore's device, or give it as the provider option user_compute_stream");
  require(given.device() == device(), "the run was given a stream of device ", given.device(),
          " and the session is on ", device());
  constexpr const char* kWhy =
      "the run was given a stream (RunOptionsSetSyncStream), and a graph is captured and replayed on the session's "
      "own; give the stream as the provider option user_compute_stream instead";
  if (capturing() && graphs_->refuse(kWhy)) fail(Code::capture_forbidden, kWhy);
  ran_elsewhere_ = true;
  return given;
}

void Ep::synchronize() {
  const auto turn = this->turn();
  if (graphs_) {
    graphs_->synchronize();
  } else {
    const std::lock_guard lock(streams_mutex_);
    for (SyncStream* stream : streams_) stream->ref().synchronize();
  }
  check_faults();
}

void Ep::start_run(const OrtRunOptions* options) {
  thread_run = {this};
  if (!graphs_) return shared_ ? shared_->begin_run() : void();
  const device::Current current(device());
  graphs_->begin_run(captures() ? graph_id_of(options) : graph::kEagerId);
}

void Ep::end_run(const OrtRunOptions*, bool synchronous) {
  const ThreadRun run = std::exchange(thread_run, {});
  const device::Current current(device());
  if (!graphs_) {
    if (shared_) shared_->end_run();
    // The streams' Flush, which follows, waits too; but nobody hears what it finds.
    if (!synchronous) return;
    const auto turn = this->turn();
    for (const auto& known : run.streams) known.stream.synchronize();
    return check_faults();
  }
  if (!graphs_->end_run(!run.failed)) {
    thread_run.repeat = this;
  } else if (synchronous) {
    for (const auto& known : run.streams)
      if (known.stream != graphs_->stream()) known.stream.synchronize();  // the application's
    synchronize();
  }
}

void Ep::find_nodes(const OrtGraph* graph, OrtEpGraphSupportInfo* support) {
  const OrtNode* parent = nullptr;
  check(ort().api->Graph_GetParentNode(graph, &parent));
  Claim claim = examine(graph, support, factory_->name(), settings());
  for (const OrtNode* node : claim.nodes) check(ort().ep->EpGraphSupportInfo_AddSingleNode(support, node));

  // Asked for subgraphs first, and for each graph again if onnxruntime changes the layout. What counts is the last
  // answer; what is the same in both is said once.
  const auto is_new = [&](const std::string& line) { return placement_.insert(line).second; };
  const auto log = [&](const std::string& line) {
    if (is_new(line)) options_.log_placement ? log_.warning(line) : log_.verbose(line);
  };
  for (const auto* left : {&claim.declined, &claim.shape_arithmetic})
    for (const auto& [node, why] : *left) log(node + " is not on Encore: " + why);
  log(text("Encore takes ", claim.nodes.size(), " of ", claim.node_count, " nodes", parent ? " of a subgraph" : "",
           "; ", claim.shape_arithmetic.size(), " of the others are shape arithmetic"));

  fixed_layout_ = std::move(claim.fixed_layout);

  if (!claim.ill_formed.empty()) log_.error(impossible_ = claim.ill_formed.front());
  // Asked for subgraphs first, and again if onnxruntime changes the layout: what counts is the last answer for the
  // model itself.
  if (parent) return;
  signature_ = Signature(graph);
  std::vector<std::string> obstacles = claim.control_flow;
  for (std::string& node : obstacles) node += ": control flow";
  for (const auto& [node, why] : claim.declined) obstacles.push_back(node + ": " + why);
  for (const std::string& crossing : claim.crossings)
    obstacles.push_back("a copy between host and device: " + crossing);
  cannot_capture_ = false;
  if (!graphs_ || obstacles.empty()) return;
  constexpr size_t kMostListed = 5;
  const std::string list = joined(obstacles, kMostListed);
  cannot_capture_ = options_.graph_on_error == graph::OnError::eager;
  if (!claim.control_flow.empty() && !cannot_capture_) {
    // onnxruntime refuses these without a name. It isn't asked to capture, and the first kernel to be made refuses.
    impossible_ = "enable_cuda_graph=1 is impossible with this model, because of " +
                  joined(claim.control_flow, kMostListed) +
                  ": onnxruntime captures no model with control flow. Switch it off, or set graph_on_error=eager";
    cannot_capture_ = !claim.nodes.empty();
    return log_.error(impossible_);
  }
  const std::string warning = cannot_capture_ ? "the model can't be captured, so every run is eager: " + list
                                              : "onnxruntime may refuse to capture the model, because of: " + list;
  if (is_new(warning)) log_.warning(warning);
}

void Ep::set_dynamic_option(const std::string& key, const std::string& value) {
  std::string bare = key;
  for (const std::string& prefix : option_prefixes(factory_->name()))
    if (key.starts_with(prefix)) bare = key.substr(prefix.size());
  if (bare == "trace") return trace(value);
  if (bare == "report_graphs")
    return write_report(as_json(graphs_ ? graphs_->reports() : std::vector<graph::Report>()), value);
  if (bare == "report_memory")
    return write_report(as_json({.arena = arena_->stats(),
                                 .holders = arena_->holders(),
                                 .pinned = factory_->pinned().stats(),
                                 .staging_bytes = copies_.held_bytes(),
                                 .device = device::memory_info(device())}),
                        value);
  if (bare == "report_tuning") return write_report(as_json(blas().tuned()), value);
  fail(Code::invalid_input, "unknown dynamic option '", key,
       "'; the known ones are 'ep.cuda.report_graphs', 'ep.cuda.report_memory', 'ep.cuda.report_tuning' and "
       "'ep.cuda.trace'");
}

void Ep::fill_callbacks() {
  ort_version_supported = ort().version;
  GetName = [](const OrtEp* self) noexcept { return from(self).factory_->name().c_str(); };
  GetCapability = [](OrtEp* self, const OrtGraph* graph, OrtEpGraphSupportInfo* support) noexcept -> OrtStatus* {
    return guarded("GetCapability", [&] { from(self).find_nodes(graph, support); });
  };
  GetKernelRegistry = [](OrtEp* self, const OrtKernelRegistry** registry) noexcept -> OrtStatus* {
    return guarded("GetKernelRegistry", [&] { *registry = from(self).factory_->registry(); });
  };
  SetDynamicOptions = [](OrtEp* self, const char* const* keys, const char* const* values,
                         size_t count) noexcept -> OrtStatus* {
    return guarded("SetDynamicOptions", [&] {
      for (size_t i = 0; i < count; ++i) from(self).set_dynamic_option(keys[i], values[i]);
    });
  };
  OnRunStart = [](OrtEp* self, const OrtRunOptions* options) noexcept -> OrtStatus* {
    return guarded("OnRunStart", [&] { from(self).start_run(options); });
  };
  OnRunEnd = [](OrtEp* self, const OrtRunOptions* options, bool synchronous) noexcept -> OrtStatus* {
    return guarded("OnRunEnd", [&] { from(self).end_run(options, synchronous); });
  };
  CreateAllocator = [](OrtEp* self, const OrtMemoryInfo* info, OrtAllocator** allocator) noexcept -> OrtStatus* {
    return guarded("CreateAllocator", [&] {
      Ep& ep = from(self);
      const bool own =
          int(ort().ep->MemoryDevice_GetDeviceId(ort().ep->MemoryInfo_GetMemoryDevice(info))) == ep.device();
      *allocator = ep.factory_->make_allocator(info, own ? ep.arena_ : nullptr);
    });
  };
  CreateSyncStreamForDevice = [](OrtEp* self, const OrtMemoryDevice*,
                                 OrtSyncStreamImpl** stream) noexcept -> OrtStatus* {
    return guarded("CreateSyncStreamForDevice", [&] { *stream = new SyncStream(from(self)); });
  };
  IsConcurrentRunSupported = [](OrtEp* self, bool* supported) noexcept -> OrtStatus* {
    *supported = !from(self).shared_;
    return nullptr;
  };
  if (options_.prefer_nhwc) {
    GetPreferredDataLayout = [](OrtEp*, OrtEpDataLayout* layout) noexcept -> OrtStatus* {
      *layout = OrtEpDataLayout_NHWC;
      return nullptr;
    };
    ShouldConvertDataLayoutForOp = [](OrtEp* self, const char* domain, const char* op, OrtEpDataLayout layout,
                                      int* should) noexcept -> OrtStatus* {
      return guarded("ShouldConvertDataLayoutForOp", [&] {
        const std::string_view from(domain);
        *should = layout == OrtEpDataLayout_NHWC && (from.empty() || from == "ai.onnx") &&
                  !Ep::from(self).fixed_layout_.contains(op);
      });
    };
  }
  if (host_has(kSyncApi))
    Sync = [](OrtEp* self) noexcept -> OrtStatus* { return guarded("Sync", [&] { from(self).synchronize(); }); };
  if (host_has(kDefaultMemoryDeviceApi))
    GetDefaultMemoryDevice = [](const OrtEp* self, const OrtMemoryDevice** memory) noexcept -> OrtStatus* {
      return guarded("GetDefaultMemoryDevice", [&] {
        const Ep& ep = from(self);
        *memory = ort().ep->MemoryInfo_GetMemoryDevice(ep.factory_->devices().memory_info(ep.device(), false));
      });
    };
  if (!graphs_) return;
  // After a capture that came to nothing onnxruntime has to be told once more that capture is on: then it repeats the
  // run, which is eager this time.
  IsGraphCaptureEnabled = [](const OrtEp* self) noexcept {
    const Ep& ep = from(self);
    return ep.captures() || thread_run.repeat == &ep;
  };
  IsGraphCaptured = [](const OrtEp* self, int id) noexcept {
    const Ep& ep = from(self);
    return id >= 0 && ep.graphs_->is_captured(id);
  };
  ReplayGraph = [](OrtEp* self, int id) noexcept -> OrtStatus* {
    return guarded("ReplayGraph", [&] {
      Ep& ep = from(self);
      ep.graphs_->replay(id);
      if (ort().minor < int(kSyncAfterReplayHost)) ep.synchronize();
    });
  };
  // Shapes are computed on the CPU; what they are needed for is on the device.
  GetGraphCaptureNodeAssignmentPolicy = [](const OrtEp*) noexcept {
    return OrtGraphCaptureNodeAssignmentPolicy_ALLOW_CPU_FOR_SHAPES;
  };
  if (host_has(kReleaseCapturedGraphApi))
    ReleaseCapturedGraph = [](OrtEp* self, int id) noexcept -> OrtStatus* {
      return guarded("ReleaseCapturedGraph", [&] { from(self).graphs_->release(id); });
    };
}

}  // namespace encore::plugin
