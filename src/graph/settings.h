// What a session's options say of graphs.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "device/stream.h"
#include "graph/default_stream_order.h"
#include "memory/source.h"
#include "profile/recorder.h"

namespace encore::graph {

inline constexpr int kEagerId = -1;

class SharedStream;

enum class OnError { fail, eager };
struct Settings {
  bool enabled = false;
  int warm_ups = 2;  // eager runs before the capture
  OnError on_error = OnError::fail;
  std::function<void(const std::string&)> warn = [](const std::string&) {};
  DefaultStreamOrder::Settings default_stream = {};
  SharedStream* shared = nullptr;  // where all threads work, if not on streams of their own; outlives the session
  std::function<device::Stream()> stream = {};  // for a thread, as long as the session lives; none given: a new one
  std::shared_ptr<memory::Source> memory = {};  // where graphs get theirs; null: from a pool of their own
  std::shared_ptr<profile::Recorder> recorder = {};  // null: nobody profiles
};

}  // namespace encore::graph
