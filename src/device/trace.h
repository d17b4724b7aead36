// What the device did, in the order in which it was done. Only the virtual GPU keeps such a record.
#pragma once
#include <string>
#include <vector>

namespace encore::device {

enum class Traced {
  kernel,
  copy,
  fill,
  allocate,
  free,
  record,
  wait,
  graph,  // as a stream runs them
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

// Forgets what an earlier trace holds, and begins anew. One trace at a time, of the whole process. Error{not_supported}
// on CUDA, for which NVIDIA's profilers do this.
void start_trace();
std::vector<TraceEntry> stop_trace();

}  // namespace encore::device
