#include "plugin/host/memory_kind.h"

namespace encore::plugin {

bool is_device_memory(const OrtMemoryDevice* where, const OrtEpApi& api) {
  return api.MemoryDevice_GetDeviceType(where) == OrtMemoryInfoDeviceType_GPU &&
         api.MemoryDevice_GetVendorId(where) == kNvidia &&
         api.MemoryDevice_GetMemoryType(where) == OrtDeviceMemoryType_DEFAULT;
}
bool is_pinned_memory(const OrtMemoryDevice* where, const OrtEpApi& api) {
  return api.MemoryDevice_GetVendorId(where) == kNvidia &&
         api.MemoryDevice_GetMemoryType(where) == OrtDeviceMemoryType_HOST_ACCESSIBLE;
}
bool is_host_memory(const OrtMemoryDevice* where, const OrtEpApi& api) {
  return is_pinned_memory(where, api) || api.MemoryDevice_GetDeviceType(where) == OrtMemoryInfoDeviceType_CPU;
}

const char* misplaced(const OrtMemoryDevice* where, bool read_on_host, const OrtEpApi& api) {
  const bool pageable = api.MemoryDevice_GetDeviceType(where) == OrtMemoryInfoDeviceType_CPU;
  if (pageable == read_on_host) {
    if (pageable || api.MemoryDevice_GetVendorId(where) == kNvidia) return nullptr;
    return "in another provider's memory";
  }
  if (is_pinned_memory(where, api)) return nullptr;
  return read_on_host ? "in device memory, and it is read on the host" : "in host memory, and it is read on the device";
}

}  // namespace encore::plugin
