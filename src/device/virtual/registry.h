// Which memory is whose.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "device/memory.h"

namespace encore::device::virtual_gpu {

enum class Origin { driver, pool, graph, pinned };

// What a pool holds of its device, guarded by the registry.
struct PoolState {
  explicit PoolState(int device, size_t keep_bytes) : device(device), keep_bytes(keep_bytes) {}
  const int device;
  size_t keep_bytes;
  size_t used_bytes = 0, held_bytes = 0;
};

struct Allocation {
  void* address = nullptr;
  size_t bytes = 0;
  Origin origin = Origin::driver;
  int device = -1;       // of pinned memory: -1
  bool freeing = false;  // a free is on its way in a stream
  std::shared_ptr<PoolState> pool = {};
  Place place() const { return origin == Origin::pinned ? Place::pinned : Place::device; }
};

// What memory holds before its first write, which is not a number in any type of floats, and after its end.
inline constexpr unsigned char kFresh = 0xff, kFreed = 0xdb;

// Memory, registered: pinned memory is the heap's, device memory is out of the host's reach. Throws
// Error{out_of_memory} beyond the device's capacity. Its contents are undefined.
void* take(Origin origin, int device, size_t bytes, std::shared_ptr<PoolState> pool = {});
// The allocation that holds the address, if one does.
std::optional<Allocation> find(const void* address);
// Takes an allocation of this origin out of use, and its bytes off the device's account. Throws an Error that names the
// address if there is none.
void retire(Origin origin, int device, void* address);
// Gives what the pool does not use back to its device, all but `keep_bytes`.
void trim(PoolState& pool, size_t keep_bytes);
void close(PoolState& pool);  // from now on it keeps nothing
size_t held_bytes(const PoolState& pool);
// Gives a retired allocation's memory back, overwritten.
void give_back(void* address);

// Overwrites memory. Under ASan freed memory cannot be touched until it is fresh again.
void make_fresh(void* address, size_t bytes);
void make_freed(void* address, size_t bytes);

}  // namespace encore::device::virtual_gpu
