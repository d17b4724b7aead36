// Where a tensor or a stream is, as onnxruntime says it.
#pragma once
#include <cstdint>

#include "plugin/host/api_version.h"

namespace encore::plugin {

inline constexpr uint32_t kNvidia = 0x10DE;  // onnxruntime tells vendors apart by their PCI ids

bool is_device_memory(const OrtMemoryDevice* where);
bool is_pinned_memory(const OrtMemoryDevice* where);
bool is_host_memory(const OrtMemoryDevice* where);  // pageable or pinned
bool is_reached_by_kernels(const OrtMemoryDevice* where);  // all but pageable memory

}  // namespace encore::plugin
