// Where the virtual GPU writes its trace.
#pragma once
#include <atomic>
#include <string_view>

#include "device/trace.h"

namespace encore::device::virtual_gpu {

namespace detail {
extern std::atomic<bool> tracing;
void add_to_trace(const void* stream, Traced what, std::string_view name, std::string_view label);
}  // namespace detail

inline bool is_tracing() { return detail::tracing.load(std::memory_order_relaxed); }
inline void trace(const void* stream, Traced what, std::string_view name, std::string_view label) {
  if (is_tracing()) detail::add_to_trace(stream, what, name, label);
}

}  // namespace encore::device::virtual_gpu
