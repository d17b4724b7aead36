// What a capture knows of its nodes beyond CUDA: which label was in force, and the names of our own kernels.
#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "device/exchange.h"
#include "device/stream.h"

namespace encore::device::cuda {

struct Note {
  const char* label;
  std::string_view kernel;  // empty unless launch() made the node
  int order;                // in which the nodes were captured
  bool fills = false;       // a kernel in place of a fill
  bool needless = false;    // a fill of what is cleared anyway
};
using Notes = std::unordered_map<cudaGraphNode_t, Note>;

inline std::atomic<int> captures_under_way{0};  // begun by begin_capture()
// Of conditional nodes, which this thread captures. Kernels inside wait for one another as a whole: whether these may
// overlap there is not known.
inline thread_local int bodies_open = 0;
void note_new_nodes(StreamRef stream, std::string_view kernel);
// The same of what a library call launches that clears memory which is cleared already (clear_ahead.h): it need not.
void note_cleared(StreamRef stream, const void* at, size_t bytes);

// If the stream captures: gives the nodes that were captured since the last call the current Label. Call it after
// every library call that launches; launch(), copy() and the like call it themselves. `kernel` names the last node.
inline void note_capture(StreamRef stream, std::string_view kernel = {}) {
  if (captures_under_way.load(std::memory_order_relaxed) != 0) [[unlikely]]
    note_new_nodes(stream, kernel);
}

// Invalidates the stream's capture, as CUDA does at an illegal call; and throws Error{capture_forbidden}, or
// Error{capture_failed} if it was invalid before.
void invalidate(StreamRef stream) noexcept;
[[noreturn]] void forbid(StreamRef stream, const char* what, const char* call);

// Where nodes are added to a graph, and what the next one comes after.
struct End {
  cudaGraph_t graph = nullptr;
  std::vector<cudaGraphNode_t> last = {};
};
// Of what the stream captures; there is no graph if it captures nothing. Throws Error{capture_failed} if it is invalid.
End end_of(StreamRef stream);
// What the stream captures next comes after these.
void go_on_after(StreamRef stream, const std::vector<cudaGraphNode_t>& last);

// Of a node that the stream captures.
void note_exchange(StreamRef stream, Exchange exchange);

// The stream is about to go.
void forget_capture(StreamRef stream) noexcept;

}  // namespace encore::device::cuda
