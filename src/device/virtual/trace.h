// What the virtual GPU did, in the order in which it was done, for tests to look at.
#pragma once
#include <atomic>
#include <string>
#include <string_view>
#include <vector>

namespace encore::device::virtual_gpu {

enum class Traced {
  kernel,
  copy,
  fill,
  allocate,
  free,
  record,
  wait,
  graph,  // as a stream's worker runs them
  synchronize,
  synchronize_event,
  query,
  driver_allocate,
  driver_free,  // as a host thread calls them
};
const char* name(Traced what);

struct TraceEntry {
  const void* stream;  // StreamRef::native(); null where no stream takes part
  Traced what;
  std::string name;   // of the kernel
  std::string label;  // the ONNX node's name
};

// Forgets what an earlier trace holds, and begins anew. One trace at a time, of the whole process.
void start_trace();
std::vector<TraceEntry> stop_trace();

namespace detail {
extern std::atomic<bool> tracing;
void add_to_trace(const void* stream, Traced what, std::string_view name, std::string_view label);
}  // namespace detail

inline void trace(const void* stream, Traced what, std::string_view name, std::string_view label) {
  if (detail::tracing.load(std::memory_order_relaxed)) detail::add_to_trace(stream, what, name, label);
}

}  // namespace encore::device::virtual_gpu
