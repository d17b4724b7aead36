#include "device/virtual/trace.h"

#include <mutex>

namespace encore::device {

namespace virtual_gpu {

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

}  // namespace virtual_gpu

using namespace virtual_gpu;

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

}  // namespace encore::device
