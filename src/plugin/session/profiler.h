// What onnxruntime's own profile is told of the device (SessionOptions.enable_profiling), from 1.25 on.
#pragma once
#include <memory>

#include "plugin/host/api_version.h"
#include "profile/recorder.h"

namespace encore::plugin {

// May outlive its session.
class Profiler : public OrtEpProfilerImpl {
 public:
  explicit Profiler(std::shared_ptr<profile::Recorder> recorder);

 private:
  void end(OrtProfilingEventsContainer* events);

  const std::shared_ptr<profile::Recorder> recorder_;
  std::unique_ptr<profile::Recorder::Profile> profile_;  // from StartProfiling to EndProfiling
  profile::Clock::time_point begin_;                     // of onnxruntime's
};

}  // namespace encore::plugin
