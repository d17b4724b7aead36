// Captures of a thread whose graphs are dropped.
#pragma once
#include "device/graph.h"

namespace encore::device {

// In the scope libraries look for what a first run finds, on streams of their own, though a stream captures.
class RehearsalScope {
 public:
  RehearsalScope() { ++depth_; }
  ~RehearsalScope() { --depth_; }
  RehearsalScope(const RehearsalScope&) = delete;
  static bool is_open() { return depth_ > 0; }

 private:
  const RelaxedCapture relaxed_;
  static inline thread_local int depth_ = 0;
};

}  // namespace encore::device
