// Where a tensor or a stream is, as onnxruntime says it.
#pragma once
#include <cstdint>

#include "plugin/host/api_version.h"

namespace encore::plugin {

inline constexpr uint32_t kNvidia = 0x10DE;  // onnxruntime tells vendors apart by their PCI ids

bool is_device_memory(const OrtMemoryDevice* where, const OrtEpApi& api = *ort().ep);
bool is_pinned_memory(const OrtMemoryDevice* where, const OrtEpApi& api = *ort().ep);
bool is_host_memory(const OrtMemoryDevice* where, const OrtEpApi& api = *ort().ep);  // pageable or pinned

// What is wrong with a tensor there that is read on the host, or on the device: "in device memory, and it is read on
// the host". Null if nothing is. Asked for every input of every node, so it asks little.
const char* misplaced(const OrtMemoryDevice* where, bool read_on_host, const OrtEpApi& api = *ort().ep);

}  // namespace encore::plugin
