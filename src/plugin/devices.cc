#include "plugin/devices.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>
#include <vector>

#include "plugin/host/lower.h"

namespace encore::plugin {
namespace {

constexpr const char* kDeviceId = "cuda_device_id";
constexpr const char* kBuildNote = ENCORE_BUILD_NOTE;  // what whoever built this may not have seen

// "00000000:65:00.0" and "0000:65:00.0" are the same place.
std::string without_domain_padding(std::string_view bus_id) {
  std::string out = lower(bus_id);
  const size_t colon = out.find(':');
  if (colon != std::string::npos && colon > 4) out.erase(0, colon - 4);
  return out;
}

std::string bus_id_of(const OrtHardwareDevice* hardware) {
  const OrtKeyValuePairs* metadata = ort().api->HardwareDevice_Metadata(hardware);
  const char* bus_id = metadata ? ort().api->GetKeyValue(metadata, "pci_bus_id") : nullptr;
  return bus_id ? without_domain_padding(bus_id) : std::string();
}

// For each device the hardware that onnxruntime lists for it, or null. Hardware without a bus id is taken in order.
std::vector<const OrtHardwareDevice*> match(const std::vector<device::Description>& devices,
                                            const OrtHardwareDevice* const* listed, size_t listed_count) {
  const OrtApi& api = *ort().api;
  std::vector<const OrtHardwareDevice*> matched(devices.size());
  std::vector<const OrtHardwareDevice*> anonymous;
  if (device::backend() == std::string_view("virtual")) return matched;  // a listed GPU is another device
  for (size_t i = 0; i < listed_count; ++i) {
    const OrtHardwareDevice* hardware = listed[i];
    if (api.HardwareDevice_Type(hardware) != OrtHardwareDeviceType_GPU ||
        api.HardwareDevice_VendorId(hardware) != kNvidia)
      continue;
    const std::string bus_id = bus_id_of(hardware);
    if (bus_id.empty()) anonymous.push_back(hardware);
    for (size_t d = 0; d < devices.size(); ++d)
      if (!bus_id.empty() && bus_id == without_domain_padding(devices[d].pci_bus_id)) matched[d] = hardware;
  }
  auto next = anonymous.begin();
  for (const OrtHardwareDevice*& hardware : matched)
    if (!hardware && next != anonymous.end()) hardware = *next++;
  return matched;
}

class Pairs {
 public:
  Pairs() { ort().api->CreateKeyValuePairs(&pairs_); }
  ~Pairs() { ort().api->ReleaseKeyValuePairs(pairs_); }
  Pairs(const Pairs&) = delete;
  void add(const char* key, const std::string& value) { ort().api->AddKeyValuePair(pairs_, key, value.c_str()); }
  const OrtKeyValuePairs* get() const { return pairs_; }

 private:
  OrtKeyValuePairs* pairs_ = nullptr;
};

OrtPtr<OrtHardwareDevice> make_hardware(int device, const device::Description& description) {
  Pairs metadata;
  if (!description.pci_bus_id.empty()) metadata.add("pci_bus_id", description.pci_bus_id);
  metadata.add("name", description.name);
  OrtHardwareDevice* hardware = nullptr;
  const char* const vendor = device::backend() == std::string_view("virtual") ? "Encore (virtual)" : "NVIDIA";
  check(ort().ep->CreateHardwareDevice(OrtHardwareDeviceType_GPU, kNvidia, static_cast<uint32_t>(device), vendor,
                                       metadata.get(), &hardware));
  return owned(hardware, ort().ep->ReleaseHardwareDevice);
}

// An alignment would become part of the device's identity, and bindings by device name would then find no allocator.
OrtPtr<OrtMemoryInfo> make_memory_info(const char* name, int device, OrtDeviceMemoryType type) {
  OrtMemoryInfo* info = nullptr;
  check(ort().api->CreateMemoryInfo_V2(name, OrtMemoryInfoDeviceType_GPU, kNvidia, device, type, 0, OrtDeviceAllocator,
                                       &info));
  return owned(info, ort().api->ReleaseMemoryInfo);
}

}  // namespace

Devices::Entry& Devices::entry(int device) {
  const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.device == device; });
  if (known != entries_.end()) return *known;
  return entries_.emplace_back(Entry{device,
                                     device::describe(device),
                                     nullptr,
                                     {},
                                     make_memory_info("Cuda", device, OrtDeviceMemoryType_DEFAULT),
                                     make_memory_info("CudaPinned", device, OrtDeviceMemoryType_HOST_ACCESSIBLE)});
}

void Devices::offer(OrtEpFactory* factory, const OrtHardwareDevice* const* listed, size_t listed_count,
                    OrtEpDevice** offered, size_t most, size_t* offered_count) {
  *offered_count = 0;
  std::string why;
  const int count = std::min(device::count(&why), device::kMaxDevices);
  if (count <= 0) return log_.warning("Encore offers no device: " + why);
  if (*kBuildNote) log_.warning(kBuildNote);
  std::vector<device::Description> descriptions;
  for (int d = 0; d < count; ++d) descriptions.push_back(entry(d).description);
  const auto hardware = match(descriptions, listed, listed_count);
  for (int d = 0; d < count && *offered_count < most; ++d) {
    if (const std::string why_not = device::unfit(d); !why_not.empty()) {
      log_.warning(text("Encore does not offer device ", d, ": ", why_not));
      continue;
    }
    Entry& one = entry(d);
    if (!hardware[size_t(d)] && !one.own_hardware) one.own_hardware = make_hardware(d, one.description);
    one.hardware = hardware[size_t(d)] ? hardware[size_t(d)] : one.own_hardware.get();
    Pairs metadata, defaults;
    metadata.add(kDeviceId, std::to_string(d));
    metadata.add("cuda_device_name", one.description.name);
    metadata.add("cuda_compute_capability",
                 text(one.description.compute_capability_major, ".", one.description.compute_capability_minor));
    defaults.add("device_id", std::to_string(d));
    OrtEpDevice* ep_device = nullptr;
    check(ort().ep->CreateEpDevice(factory, one.hardware, metadata.get(), defaults.get(), &ep_device));
    auto holder = owned(ep_device, ort().ep->ReleaseEpDevice);
    check(ort().ep->EpDevice_AddAllocatorInfo(ep_device, one.memory.get()));
    check(ort().ep->EpDevice_AddAllocatorInfo(ep_device, one.pinned.get()));
    offered[(*offered_count)++] = holder.release();
  }
}

const OrtMemoryInfo* Devices::memory_info(int device, bool pinned) const {
  for (const Entry& entry : entries_)
    if (entry.device == device) return pinned ? entry.pinned.get() : entry.memory.get();
  fail(Code::no_device, "Encore was asked for memory of device ", device, ", which it does not offer");
}

int Devices::from_metadata(const OrtKeyValuePairs* metadata) {
  const char* const id = metadata ? ort().api->GetKeyValue(metadata, kDeviceId) : nullptr;
  int device = -1;
  if (id) std::from_chars(id, id + std::strlen(id), device);
  return device;
}

}  // namespace encore::plugin
