#include "device/virtual/trace.h"

#include <mutex>

namespace encore::device::virtual_gpu {

namespace {
struct Record {
  std::mutex mutex;
  std::vector<TraceEntry> entries;
};
Record& record() {
  static auto& record = *new Record;  // workers may outlive static destructors
  return record;
}
}  // namespace

namespace detail {
std::atomic<bool> tracing{false};

void add_to_trace(const void* stream, Traced what, std::string_view name, std::string_view label) {
  std::lock_guard lock(record().mutex);
  record().entries.push_back({stream, what, std::string(name), std::string(label)});
}
}  // namespace detail

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

void start_trace() {
  std::lock_guard lock(record().mutex);
  record().entries.clear();
  detail::tracing.store(true, std::memory_order_relaxed);
}

std::vector<TraceEntry> stop_trace() {
  std::lock_guard lock(record().mutex);
  detail::tracing.store(false, std::memory_order_relaxed);
  return std::move(record().entries);
}

}  // namespace encore::device::virtual_gpu
