// The devices that are offered to onnxruntime.
#pragma once
#include <deque>
#include <string>

#include "device/device.h"
#include "plugin/host/api_version.h"
#include "plugin/host/fence.h"
#include "plugin/host/log.h"
#include "plugin/host/memory_kind.h"

namespace encore::plugin {

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
