#include "plugin/host/memory_kind.h"

namespace encore::plugin {

bool is_device_memory(const OrtMemoryDevice* where) {
  const OrtEpApi& api = *ort().ep;
  return api.MemoryDevice_GetDeviceType(where) == OrtMemoryInfoDeviceType_GPU &&
         api.MemoryDevice_GetVendorId(where) == kNvidia &&
         api.MemoryDevice_GetMemoryType(where) == OrtDeviceMemoryType_DEFAULT;
}
bool is_pinned_memory(const OrtMemoryDevice* where) {
  const OrtEpApi& api = *ort().ep;
  return api.MemoryDevice_GetVendorId(where) == kNvidia &&
         api.MemoryDevice_GetMemoryType(where) == OrtDeviceMemoryType_HOST_ACCESSIBLE;
}
bool is_host_memory(const OrtMemoryDevice* where) {
  return is_pinned_memory(where) || ort().ep->MemoryDevice_GetDeviceType(where) == OrtMemoryInfoDeviceType_CPU;
}
bool is_reached_by_kernels(const OrtMemoryDevice* where) {
  return is_pinned_memory(where) || ort().ep->MemoryDevice_GetDeviceType(where) != OrtMemoryInfoDeviceType_CPU;
}

}  // namespace encore::plugin
