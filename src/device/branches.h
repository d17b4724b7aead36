// Branches of a graph: parts that need not wait for one another. One stream captures them all, as it goes back to where
// a branch begins.
#pragma once
#include <cstdint>
#include <vector>

#include "device/stream.h"

namespace encore::device {

// What a capture has come to: what is captured next comes after these nodes.
struct CaptureEnd {
  std::vector<std::intptr_t> nodes = {};  // of the back end

  void add(const CaptureEnd& other);
};

// Whether the stream captures a graph that may have branches.
bool may_branch(StreamRef stream);
CaptureEnd capture_end(StreamRef stream);
// What the stream captures next comes after these, and after nothing else.
void go_on_after(StreamRef stream, const CaptureEnd& end);

}  // namespace encore::device
