// What onnxruntime calls of a session's execution provider, and the options that change while it lives.
#include "device/device.h"
#include "device/memory.h"
#include "graph/capture_gate.h"
#include "plugin/host/fence.h"
#include "plugin/session/ep.h"
#include "plugin/session/profiler.h"
#include "plugin/session/registration.h"
#include "plugin/session/report.h"
#include "plugin/session/stream.h"

namespace encore::plugin {

void Ep::set_dynamic_option(const std::string& key, const std::string& value) {
  std::string bare = key;
  for (const std::string& prefix : option_prefixes(registration_->name()))
    if (key.starts_with(prefix)) bare = key.substr(prefix.size());
  if (key.starts_with("ep.dynamic.")) return;  // onnxruntime's own, or another provider's: hints
  if (bare == "trace") return trace(value);
  if (bare == "profile") return profile(value);
  if (bare == "report_graphs") return write_report(as_json(graph_reports()), value);
  if (bare == "report_regions")
    return write_report(as_json(store_ ? store_->reports() : std::vector<automatic::RegionReport>()), value);
  if (bare == "report_placement") return write_report(as_json(placement_), value);
  if (bare == "report_memory")
    return write_report(as_json({.arena = arena_->stats(),
                                 .holders = arena_->holders(),
                                 .pinned = registration_->pinned().stats(),
                                 .staging_bytes = copies_.held_bytes(),
                                 .graphs = store_ ? store_->held() : automatic::HeldReport(),
                                 .device = device::memory_info(device())}),
                        value);
  if (bare == "report_tuning") {
    std::vector<device::TunedProduct> tuned = blas().tuned(), convolutions = dnn().tuned();
    tuned.insert(tuned.end(), convolutions.begin(), convolutions.end());
    return write_report(as_json(tuned), value);
  }
  if (bare == "captures") {
    if (value == "hold") return graph::capture_gate::hold();
    if (value == "let go") return graph::capture_gate::let_go();
    fail(Code::invalid_input, "dynamic option '", key, "' is '", value, "'; it must be 'hold' or 'let go'");
  }
  fail(Code::invalid_input, "unknown dynamic option '", key,
       "'; the known ones are 'ep.cuda.captures', 'ep.cuda.profile', 'ep.cuda.report_graphs', "
       "'ep.cuda.report_memory', 'ep.cuda.report_placement', 'ep.cuda.report_regions', 'ep.cuda.report_tuning' and "
       "'ep.cuda.trace'");
}

// Begins a profile, anew if there is one, or writes what it has.
void Ep::profile(const std::string& value) {
  const std::lock_guard lock(profile_mutex_);
  if (value == "start") {
    auto next = recorder_->start();  // before the other ends, so that graphs stay
    profile_ = std::move(next);
    return;
  }
  require(profile_ != nullptr, "dynamic option 'ep.cuda.profile' names a file, and no profile was begun ('start')");
  const auto ended = std::move(profile_);
  write_report(as_json(ended->take()), value);
}

void Ep::fill_callbacks() {
  ort_version_supported = ort().version;
  GetName = [](const OrtEp* self) noexcept { return from(self).registration_->name().c_str(); };
  GetCapability = [](OrtEp* self, const OrtGraph* graph, OrtEpGraphSupportInfo* support) noexcept -> OrtStatus* {
    return guarded("GetCapability", [&] { from(self).find_nodes(graph, support); });
  };
  GetKernelRegistry = [](OrtEp* self, const OrtKernelRegistry** registry) noexcept -> OrtStatus* {
    return guarded("GetKernelRegistry", [&] { *registry = from(self).registration_->registry(); });
  };
  SetDynamicOptions = [](OrtEp* self, const char* const* keys, const char* const* values,
                         size_t count) noexcept -> OrtStatus* {
    return guarded("SetDynamicOptions", [&] {
      for (size_t i = 0; i < count; ++i) from(self).set_dynamic_option(keys[i], values[i]);
    });
  };
  OnRunStart = [](OrtEp* self, const OrtRunOptions* options) noexcept -> OrtStatus* {
    return guarded_on(from(self).device(), "OnRunStart", [&] { from(self).start_run(options); });
  };
  OnRunEnd = [](OrtEp* self, const OrtRunOptions* options, bool synchronous) noexcept -> OrtStatus* {
    return guarded_on(from(self).device(), "OnRunEnd", [&] {
      Ep& ep = from(self);
      ep.end_run(options, synchronous);
      if (ep.recorder_->is_on()) ep.recorder_->collect(profile::Recorder::Wait::no);
    });
  };
  CreateAllocator = [](OrtEp* self, const OrtMemoryInfo* info, OrtAllocator** allocator) noexcept -> OrtStatus* {
    return guarded("CreateAllocator", [&] {
      Ep& ep = from(self);
      const bool own =
          int(ort().ep->MemoryDevice_GetDeviceId(ort().ep->MemoryInfo_GetMemoryDevice(info))) == ep.device();
      *allocator = ep.registration_->make_allocator(info, own ? ep.arena_ : nullptr);
    });
  };
  CreateSyncStreamForDevice = [](OrtEp* self, const OrtMemoryDevice*,
                                 OrtSyncStreamImpl** stream) noexcept -> OrtStatus* {
    return guarded_on(from(self).device(), "CreateSyncStreamForDevice", [&] { *stream = new SyncStream(from(self)); });
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
  if (host_has(kProfilerApi))
    CreateProfiler = [](OrtEp* self, OrtEpProfilerImpl** profiler) noexcept -> OrtStatus* {
      return guarded("CreateProfiler", [&] { *profiler = new Profiler(from(self).recorder_); });
    };
  if (host_has(kSyncApi))
    Sync = [](OrtEp* self) noexcept -> OrtStatus* {
      return guarded_on(from(self).device(), "Sync", [&] { from(self).synchronize_as_asked(); });
    };
  if (host_has(kDefaultMemoryDeviceApi))
    GetDefaultMemoryDevice = [](const OrtEp* self, const OrtMemoryDevice** memory) noexcept -> OrtStatus* {
      return guarded("GetDefaultMemoryDevice", [&] {
        const Ep& ep = from(self);
        *memory = ort().ep->MemoryInfo_GetMemoryDevice(ep.registration_->memory_info(ep.device(), false));
      });
    };
  if (host_has(kSessionInitializationEndApi))  // where nothing else is made, or only what is fused
    OnSessionInitializationEnd = [](OrtEp* self) noexcept -> OrtStatus* {
      return guarded("OnSessionInitializationEnd", [&] {
        from(self).wait_for_libraries();
        from(self).check_model();
      });
    };
  if (!graphs_) return;
  IsGraphCaptureEnabled = [](const OrtEp* self) noexcept { return from(self).asks_for_captures(); };
  IsGraphCaptured = [](const OrtEp* self, int id) noexcept { return from(self).is_captured(id); };
  ReplayGraph = [](OrtEp* self, int id) noexcept -> OrtStatus* {
    Ep& ep = from(self);
    return guarded_on(ep.device(), "ReplayGraph", [&] { ep.replay(id); });
  };
  // Shapes are computed on the CPU; what they are needed for is on the device.
  GetGraphCaptureNodeAssignmentPolicy = [](const OrtEp*) noexcept {
    return OrtGraphCaptureNodeAssignmentPolicy_ALLOW_CPU_FOR_SHAPES;
  };
  if (host_has(kReleaseCapturedGraphApi))
    ReleaseCapturedGraph = [](OrtEp* self, int id) noexcept -> OrtStatus* {
      return guarded_on(from(self).device(), "ReleaseCapturedGraph", [&] { from(self).graphs_->release(id); });
    };
}

}  // namespace encore::plugin
