// Device and pinned memory, and copies. Everything here is raw; ownership and reuse live in the memory room.
#pragma once
#include <cstddef>
#include <utility>

#include "device/stream.h"

namespace encore::device {

enum class Place { host, pinned, device };
// Where an address lives. Unknown addresses are host memory.
Place place_of(const void* address);

struct MemoryInfo {
  size_t free_bytes = 0, total_bytes = 0;
};
MemoryInfo memory_info(int device);

// From the driver, aligned to 256 bytes; throws Error{out_of_memory}. Forbidden in a thread whose stream captures,
// unless inside a RelaxedCapture scope.
void* allocate(int device, size_t bytes);
void free(int device, void* address);  // the caller has seen to it that no work still uses it

// From the device's stream-ordered pool, which everybody shares; free_async() also frees what a MemoryPool gave. In a
// capture these become nodes of the graph.
void* allocate_async(StreamRef stream, size_t bytes);
void free_async(StreamRef stream, void* address);
// Gives unused memory of the pool back to the driver, keeping at most `keep_bytes`.
void trim_pool(int device, size_t keep_bytes);

// A stream-ordered pool of its own.
class MemoryPool {
 public:
  MemoryPool() = default;
  // Whenever the host waits for the device, unused memory beyond `keep_bytes` goes back to the driver.
  MemoryPool(int device, size_t keep_bytes);
  ~MemoryPool();  // what is still allocated stays so until it is freed, with free_async()
  MemoryPool(MemoryPool&& other) noexcept : native_(std::exchange(other.native_, nullptr)) {}
  MemoryPool& operator=(MemoryPool&& other) noexcept {
    std::swap(native_, other.native_);
    return *this;
  }
  void* allocate(StreamRef stream, size_t bytes) const;  // as allocate_async()
  void trim(size_t keep_bytes) const;
  size_t held_bytes() const;  // of the driver's, in use or not

 private:
  void* native_ = nullptr;
};

// Page-locked host memory, readable by kernels at the same address.
void* allocate_pinned(size_t bytes);
void free_pinned(void* address);

// Asynchronous and ordered by the stream; both ends may be host, pinned or device. In a capture neither end may be
// pageable host memory: Error{capture_forbidden}.
void copy(StreamRef stream, void* to, const void* from, size_t bytes);
// Between devices, directly where they are connected, else by way of the host.
void copy_peer(StreamRef stream, void* to, int to_device, const void* from, int from_device, size_t bytes);
// Lets two devices reach each other's memory, kernels and copies alike; false if the machine has no way. copy_peer()
// does this itself, at the first copy outside of captures. It costs milliseconds, once.
bool connect_peers(int device, int other);
void fill(StreamRef stream, void* to, unsigned char value, size_t bytes);

}  // namespace encore::device
