// Devices. The virtual build answers with its virtual GPUs, the cuda build with the machine's.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace encore::device {

inline constexpr int kMaxDevices = 16;

struct Description {
  std::string name;
  int compute_capability_major = 0, compute_capability_minor = 0;
  size_t total_bytes = 0;
  std::string pci_bus_id;
};

// "cuda" or "virtual".
const char* backend();
// Number of usable devices; zero, with the reason in `why`, when there is none or no driver. Never throws.
int count(std::string* why = nullptr);
Description describe(int device);
// What a device has costs next to nothing to ask: the driver is asked once.
// How many blocks run at once, one on each.
int multiprocessors(int device);
// The most shared memory that a block can have: Shared, what collectives need and dynamic memory together.
int64_t shared_bytes(int device);
// Of the cache that all multiprocessors share.
int64_t cache_bytes(int device);
// Why this build has no kernels for the device; empty if it has.
std::string unfit(int device);

// Makes `device` the calling thread's current one until the end of the scope. Whatever the thread had before, an
// application's own context too, is there again afterwards, and no other device is started. Costs a microsecond unless
// the device is the thread's own already.
class Current {
 public:
  explicit Current(int device);
  ~Current();
  Current(const Current&) = delete;

 private:
  int previous_;  // below zero: nothing to go back to
};

// Clears what a failed call left behind for this thread. True when the device can still be used afterwards.
bool clear_error(int device) noexcept;

}  // namespace encore::device
