#include "device/trace.h"

namespace encore::device {

const char* name(Traced what) {
  switch (what) {
    case Traced::kernel: return "kernel";
    case Traced::copy: return "copy";
    case Traced::fill: return "fill";
    case Traced::allocate: return "allocate";
    case Traced::free: return "free";
    case Traced::record: return "record";
    case Traced::wait: return "wait";
    case Traced::graph: return "graph";
    case Traced::synchronize: return "synchronize";
    case Traced::synchronize_event: return "synchronize event";
    case Traced::query: return "query";
    case Traced::driver_allocate: return "driver allocate";
    case Traced::driver_free: return "driver free";
  }
  return "unknown";
}

}  // namespace encore::device
