#include "device/virtual/registry.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "device/device.h"
#include "device/error.h"
#include "device/virtual/address_space.h"
#include "device/virtual/control.h"
#include "device/virtual/poison.h"
#include "device/virtual/stream_state.h"

namespace encore::device {

namespace virtual_gpu {
namespace {

struct Registry {
  std::shared_mutex mutex;
  std::map<uintptr_t, Allocation> allocations;  // by address
  size_t used_bytes[kMaxDevices] = {};
};
Registry& registry() {
  static auto& registry = *new Registry;
  return registry;
}

const char* name(Origin origin) {
  switch (origin) {
    case Origin::driver: return "device memory";
    case Origin::pool: return "memory of the stream-ordered pool";
    case Origin::graph: return "memory of a graph";
    case Origin::pinned: return "pinned memory";
  }
  return "memory";
}

constexpr size_t kAlignment = 256;

void* take_pinned(size_t bytes) {
  if (bytes > SIZE_MAX - kAlignment) return nullptr;
  return std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
}

// With the registry's mutex held, as release() too.
void trim_held(PoolState& pool, size_t keep_bytes) {
  const size_t kept = std::max(pool.used_bytes, std::min(pool.held_bytes, keep_bytes));
  registry().used_bytes[pool.device] -= pool.held_bytes - kept;
  pool.held_bytes = kept;
}

// Takes bytes off the device's account. A pool does not put it off until the host waits, as CUDA's do.
void release(int device, size_t bytes, PoolState* pool) {
  if (!pool) {
    registry().used_bytes[device] -= bytes;
    return;
  }
  pool->used_bytes -= bytes;
  trim_held(*pool, pool->keep_bytes);
}

}  // namespace

void trim(PoolState& pool, size_t keep_bytes) {
  std::lock_guard lock(registry().mutex);
  trim_held(pool, keep_bytes);
}

void close(PoolState& pool) {
  std::lock_guard lock(registry().mutex);
  trim_held(pool, pool.keep_bytes = 0);
}

size_t held_bytes(const PoolState& pool) {
  std::shared_lock lock(registry().mutex);
  return pool.held_bytes;
}

void* take(Origin origin, int device, size_t bytes, std::shared_ptr<PoolState> pool) {
  if (origin != Origin::pinned) check_device(device);
  bytes = std::max<size_t>(bytes, 1);  // every allocation has an address of its own
  const size_t total = origin == Origin::pinned ? SIZE_MAX : memory_bytes();
  const auto refuse = [&](size_t free) {
    if (origin == Origin::pinned)
      fail(Code::out_of_memory, "pinned memory is exhausted: ", bytes, " bytes were wanted");
    fail(Code::out_of_memory, "the memory of virtual device ", device, " is exhausted: ", bytes, " bytes were wanted, ",
         free, " of ", total, " are free");
  };
  auto& all = registry();
  {
    std::lock_guard lock(all.mutex);
    if (origin != Origin::pinned) {
      const size_t used = all.used_bytes[device], free = total > used ? total - used : 0;
      const size_t spare = pool ? pool->held_bytes - pool->used_bytes : 0, wanted = bytes - std::min(bytes, spare);
      if (wanted > free) refuse(free);
      all.used_bytes[device] += wanted;
      if (pool) pool->held_bytes += wanted, pool->used_bytes += bytes;
    }
  }
  void* const address = origin == Origin::pinned ? take_pinned(bytes) : carve(bytes);
  std::lock_guard lock(all.mutex);
  if (!address) {
    if (origin != Origin::pinned) release(device, bytes, pool.get());
    refuse(0);
  }
  all.allocations[uintptr_t(address)] = {.address = address,
                                         .bytes = bytes,
                                         .origin = origin,
                                         .device = origin == Origin::pinned ? -1 : device,
                                         .pool = std::move(pool)};
  return address;
}

std::optional<Allocation> find(const void* address) {
  auto& all = registry();
  std::shared_lock lock(all.mutex);
  auto after = all.allocations.upper_bound(uintptr_t(address));
  if (after == all.allocations.begin()) return {};
  const Allocation& candidate = std::prev(after)->second;
  if (uintptr_t(address) - uintptr_t(candidate.address) >= candidate.bytes) return {};
  return candidate;
}

void retire(Origin origin, int device, void* address) {
  auto& all = registry();
  std::lock_guard lock(all.mutex);
  auto found = all.allocations.find(uintptr_t(address));
  if (found == all.allocations.end() || found->second.freeing)
    fail(Code::invalid_input, "cannot free ", address, ": it is not allocated");
  Allocation& allocation = found->second;
  if (allocation.origin != origin)
    fail(Code::invalid_input, "cannot free ", address, " as ", name(origin), ": it is ", name(allocation.origin));
  if (origin != Origin::pinned && allocation.device != device)
    fail(Code::invalid_input, "cannot free ", address, " on device ", device, ": it belongs to device ",
         allocation.device);
  allocation.freeing = true;
  if (allocation.device >= 0) release(allocation.device, allocation.bytes, allocation.pool.get());
}

void give_back(void* address) {
  auto& all = registry();
  Allocation gone;
  {
    std::lock_guard lock(all.mutex);
    gone = all.allocations.extract(uintptr_t(address)).mapped();
  }
  make_freed(address, gone.bytes);
  if (gone.place() == Place::device) return put_back(address, gone.bytes);
  unpoison(address, gone.bytes);
  std::free(address);
}

void make_fresh(void* address, size_t bytes) {
  unpoison(reached(address), bytes);
  std::memset(reached(address), kFresh, bytes);
}

void make_freed(void* address, size_t bytes) {
  unpoison(reached(address), bytes);
  std::memset(reached(address), kFreed, bytes);
  poison(reached(address), bytes);
}

}  // namespace virtual_gpu

using namespace virtual_gpu;

Place place_of(const void* address) {
  const auto found = find(address);
  return found ? found->place() : Place::host;
}

MemoryInfo memory_info(int device) {
  check_device(device);
  const size_t total = memory_bytes();
  std::shared_lock lock(registry().mutex);
  const size_t used = registry().used_bytes[device];
  return {total > used ? total - used : 0, total};
}

}  // namespace encore::device
