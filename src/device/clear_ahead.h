// Memory that a graph clears ahead of all that wants it cleared. Libraries clear some for each call, which is a node
// of the graph that the kernel before and the one behind wait for.
#pragma once
#include <cstddef>
#include <cstdint>

#include "device/stream.h"

namespace encore::device {

struct ClearNode {
  std::intptr_t id = 0;  // of the back end
  explicit operator bool() const { return id != 0; }
};

// If the stream captures, and libraries clear memory: the node that fills these bytes with zeros.
ClearNode clear_ahead(StreamRef stream, void* at, size_t bytes);
// Nothing wanted that; the graph will be without it.
void leave_out(StreamRef stream, ClearNode node);

}  // namespace encore::device
