#include "plugin/session/profiler.h"

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "plugin/host/fence.h"
#include "plugin/session/report.h"

namespace encore::plugin {
namespace {

// Of what there is none, but rows of a picture of a profile, beside the host's processes and threads.
constexpr int32_t kDeviceProcess = -1;

}  // namespace

Profiler::Profiler(std::shared_ptr<profile::Recorder> recorder) : OrtEpProfilerImpl{}, recorder_(std::move(recorder)) {
  ort_version_supported = ort().version;
  Release = [](OrtEpProfilerImpl* self) noexcept { delete static_cast<Profiler*>(self); };
  StartProfiling = [](OrtEpProfilerImpl* self, int64_t since_begin_ns) noexcept -> OrtStatus* {
    return guarded("StartProfiling", [&] {
      auto& profiler = *static_cast<Profiler*>(self);
      profiler.begin_ = profile::Clock::now() - std::chrono::nanoseconds(since_begin_ns);
      profiler.profile_ = profiler.recorder_->start();
    });
  };
  EndProfiling = [](OrtEpProfilerImpl* self, OrtProfilingEventsContainer* events) noexcept -> OrtStatus* {
    return guarded("EndProfiling", [&] { static_cast<Profiler*>(self)->end(events); });
  };
}

void Profiler::end(OrtProfilingEventsContainer* events) {
  const auto profile = std::move(profile_);
  if (!profile) return;
  using std::chrono::microseconds;
  std::vector<OrtPtr<OrtProfilingEvent>> made;
  std::vector<const OrtProfilingEvent*> all;
  std::map<const void*, int32_t> streams;
  for (const profile::Span& span : profile->take()) {
    const int32_t stream = streams.emplace(span.stream, int32_t(streams.size())).first->second;
    const int64_t begin_us = std::chrono::floor<microseconds>(span.begin - begin_).count(),
                  end_us = std::chrono::floor<microseconds>(span.end() - begin_).count();
    const std::string us = to_the_nanosecond(span.us), own_us = to_the_nanosecond(span.own_us);
    const char* const keys[] = {"op_name", "provider", "how", "gpu_us", "gpu_own_us"};
    const char* const values[] = {span.op, "Encore", span.is_replay ? "replay" : "eager", us.c_str(), own_us.c_str()};
    OrtProfilingEvent* event = nullptr;
    check(ort().ep->CreateProfilingEvent(OrtProfilingEventCategory_KERNEL, kDeviceProcess, stream, span.name, begin_us,
                                         end_us - begin_us, keys, values, std::size(keys), &event));
    made.push_back(owned(event, ort().ep->ReleaseProfilingEvent));
    all.push_back(event);
  }
  check(ort().ep->ProfilingEventsContainer_AddEvents(events, all.data(), all.size()));
}

}  // namespace encore::plugin
