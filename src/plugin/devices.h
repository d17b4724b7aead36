// The devices that are offered to onnxruntime.
#pragma once
#include <deque>
#include <string>

#include "device/device.h"
#include "plugin/api_version.h"
#include "plugin/fence.h"
#include "plugin/log.h"

namespace encore::plugin {

inline constexpr uint32_t kNvidia = 0x10DE;

// Where a tensor or a stream is, as onnxruntime says it.
bool is_device_memory(const OrtMemoryDevice* where);
bool is_pinned_memory(const OrtMemoryDevice* where);
bool is_host_memory(const OrtMemoryDevice* where);  // pageable or pinned

class Devices {
 public:
  explicit Devices(Log log) : log_(log) {}

  // Answers GetSupportedDevices: each usable device once, on the hardware that onnxruntime lists for it if it does,
  // else on hardware of our own. Without a device that works there is none, and the reason is logged.
  void offer(OrtEpFactory* factory, const OrtHardwareDevice* const* listed, size_t listed_count, OrtEpDevice** offered,
             size_t most, size_t* offered_count);

  // Of a device that was offered.
  const OrtMemoryInfo* memory_info(int device, bool pinned) const;
  // The device which an EP device's metadata speaks of; -1 if it isn't one of ours.
  static int from_metadata(const OrtKeyValuePairs* metadata);

 private:
  struct Entry {
    int device;
    device::Description description;
    const OrtHardwareDevice* hardware;
    OrtPtr<OrtHardwareDevice> own_hardware;
    OrtPtr<OrtMemoryInfo> memory, pinned;
  };
  Entry& entry(int device);

  Log log_;
  std::deque<Entry> entries_;
};

}  // namespace encore::plugin
