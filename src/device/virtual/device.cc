#include "device/device.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "device/architectures.h"
#include "device/cluster.h"
#include "device/error.h"
#include "device/forked.h"
#include "device/gone.h"
#include "device/virtual/architecture.h"
#include "device/virtual/control.h"
#include "device/virtual/forked.h"
#include "device/virtual/stream_state.h"

namespace encore::device {

namespace virtual_gpu {
namespace {

constexpr const char* kDevices = "ENCORE_VIRTUAL_DEVICES";
constexpr const char* kMemoryBytes = "ENCORE_VIRTUAL_MEMORY_BYTES";
constexpr const char* kArchitecture = "ENCORE_VIRTUAL_ARCH";
constexpr const char* kConditionals = "ENCORE_VIRTUAL_CONDITIONALS";
constexpr const char* kDelayUs = "ENCORE_VIRTUAL_DELAY_US";

// The variable's value; `otherwise` if it is not set, -1 if it is no number.
int64_t from_environment(const char* variable, int64_t otherwise) {
  const char* given = std::getenv(variable);
  if (!given || !*given) return otherwise;
  int64_t value = 0;
  const char* end = given + std::strlen(given);
  const auto [stopped, error] = std::from_chars(given, end, value);
  return error == std::errc() && stopped == end && value >= 0 ? value : -1;
}

struct Settings {
  std::atomic<int64_t> devices{from_environment(kDevices, 1)};
  std::atomic<int64_t> memory_bytes{from_environment(kMemoryBytes, int64_t(4) << 30)};
  std::atomic<int64_t> delay_us{from_environment(kDelayUs, 0)};
  std::atomic<int> failing_launches{0};
  std::atomic<bool> gone{false};
  const int capability = int(std::min<int64_t>(from_environment(kArchitecture, 90), 1000)) * 10;
  const bool has_conditionals = from_environment(kConditionals, 1) != 0;
};
Settings& settings() {
  static auto& settings = *new Settings;
  return settings;
}

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr Architecture kKnown[] = {
    {800, "A100", 108, 163 * kKiB, 40 * kMiB, false},    {860, "RTX 3090", 82, 99 * kKiB, 6 * kMiB, false},
    {890, "RTX 4090", 128, 99 * kKiB, 72 * kMiB, false}, {900, "H100", 132, 227 * kKiB, 50 * kMiB, true},
    {1000, "B200", 148, 227 * kKiB, 126 * kMiB, true},   {1200, "RTX 5090", 170, 99 * kKiB, 96 * kMiB, true},
};

Architectures all_known() {
  Architectures all;
  for (const Architecture& each : kKnown) all.machine.push_back(each.capability);
  return all;
}

// Null if there is none.
const Architecture* played() {
  static const Architecture* const found = [] {
    const int used = all_known().used_on(settings().capability);
    const auto* const at = std::ranges::find(kKnown, used, &Architecture::capability);
    return at == std::end(kKnown) ? nullptr : at;
  }();
  return found;
}

std::string why_none() {
  const int capability = settings().capability;
  return capability < 0 ? text(kArchitecture, " must be a number such as 80")
                        : all_known().why_not(capability, "this one");
}

constexpr int kNone = -1;
thread_local int current = kNone;

}  // namespace

const Architecture& architecture() {
  require(played(), why_none());
  return *played();
}
int most_in_cluster() { return architecture().has_clusters ? kMostInCluster : 1; }

void set_device_count(int count) { settings().devices = count; }
void set_memory_bytes(size_t bytes) { settings().memory_bytes = int64_t(bytes); }
void set_delay_us(int64_t most) { settings().delay_us = most; }
void set_failing_launches(int count) { settings().failing_launches = count; }
void set_gone(bool gone) { settings().gone = gone; }

void check_not_gone() {
  if (settings().gone.load(std::memory_order_relaxed)) [[unlikely]]
    throw Gone(Code::device_failed, "the virtual GPU is gone");
}

void check_launches() {
  std::atomic<int>& failing = settings().failing_launches;
  for (int left = failing; left > 0;)
    if (failing.compare_exchange_weak(left, left - 1)) fail(Code::device_failed, "launches of graphs are to fail");
}

size_t memory_bytes() {
  const int64_t bytes = settings().memory_bytes.load(std::memory_order_relaxed);
  require(bytes >= 0, kMemoryBytes, " must be a number of bytes");
  return size_t(bytes);
}

bool has_conditionals() { return settings().has_conditionals; }

void delay() {
  const int64_t most = settings().delay_us.load(std::memory_order_relaxed);
  if (most <= 0) return;
  thread_local std::minstd_rand random(unsigned(std::hash<std::thread::id>()(std::this_thread::get_id())));
  std::this_thread::sleep_for(std::chrono::microseconds(std::uniform_int_distribution<int64_t>(0, most)(random)));
}

int current_device() { return std::max(current, 0); }

void check_starts_nothing(int device) {
  if (device != 0 && current == kNone)
    fail(Code::internal, "CUDA would start device 0 for a thread that has no current device, and means device ",
         device);
}

void check_device(int device) {
  check_not_forked();
  check_not_gone();
  std::string why;
  const int devices = count(&why);
  if (device >= 0 && device < devices) return;
  fail(Code::no_device, "there is no device ", device, ": ",
       devices ? text("this machine has ", devices, " virtual device(s)") : why);
}

}  // namespace virtual_gpu

const char* backend() { return "virtual"; }

int count(std::string* why) {
  virtual_gpu::notice_forks();
  if (virtual_gpu::is_forked()) {
    if (why) *why = kForked;
    return 0;
  }
  const int64_t devices = virtual_gpu::settings().devices.load(std::memory_order_relaxed);
  if (devices > 0 && devices <= kMaxDevices) return int(devices);
  if (why)
    *why = devices == 0 ? text(virtual_gpu::kDevices, " is 0")
                        : text(virtual_gpu::kDevices, " must be a number from 0 to ", kMaxDevices);
  return 0;
}

Description describe(int device) {
  virtual_gpu::check_device(device);
  const int capability = virtual_gpu::settings().capability;
  const virtual_gpu::Architecture* const played = virtual_gpu::played();
  return {.name = text("Encore virtual GPU", played ? text(" (", played->product, ")") : ""),
          .compute_capability_major = capability / 100,
          .compute_capability_minor = capability % 100 / 10,
          .total_bytes = virtual_gpu::memory_bytes(),
          .pci_bus_id = text("virtual:", device)};
}

std::string unfit(int device) {
  virtual_gpu::check_device(device);
  return virtual_gpu::why_none();
}

int multiprocessors(int) { return virtual_gpu::architecture().multiprocessors; }
int64_t shared_bytes(int) { return virtual_gpu::architecture().shared_bytes; }
int64_t cache_bytes(int) { return virtual_gpu::architecture().cache_bytes; }

Current::Current(int device) : previous_(virtual_gpu::current) {
  virtual_gpu::check_device(device);
  if (virtual_gpu::memory_bytes() == 0)
    fail(Code::out_of_memory, "device ", device, " has no memory left, and can't be opened");
  virtual_gpu::current = device;
}
Current::~Current() { virtual_gpu::current = previous_; }

}  // namespace encore::device
