// Device memory of one session: chunks from the driver, split and reused in stream order.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/memory.h"
#include "device/stream.h"

namespace encore::memory {

struct Limits {
  size_t max_bytes = SIZE_MAX;  // of everything the arena holds
  size_t first_chunk_bytes = size_t(1) << 20;
  size_t largest_growth_bytes = size_t(1) << 30;
  bool grow_by_doubling = true;  // else by what is asked for
};

struct Stats {
  size_t in_use_bytes = 0, held_bytes = 0, peak_in_use_bytes = 0, limit_bytes = 0;
  int64_t allocations = 0, driver_allocations = 0, driver_allocations_in_capture = 0;
};

// Memory private to one captured graph: what is allocated while it is captured. It goes back to the driver when the
// graph has let go of it and no tensor lives in it any more.
class GraphPool {
 public:
  GraphPool(int device, size_t first_chunk_bytes);
  ~GraphPool();
  size_t held_bytes() const;
  // Things that live as long as the pool, such as host memory that the graph's copies read.
  void keep(std::shared_ptr<void> thing);

 private:
  friend class Arena;
  struct State;
  std::unique_ptr<State> state_;
};

// While in scope, the calling thread's allocations on any arena of the pool's device come from the pool.
class PoolScope {
 public:
  explicit PoolScope(std::shared_ptr<GraphPool> pool);
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  static const std::shared_ptr<GraphPool>& current();

 private:
  std::shared_ptr<GraphPool> previous_;
};

class Arena {
 public:
  Arena(int device, Limits limits, std::string owner);  // the owner is named in errors
  ~Arena();                                             // blocks still in use stay valid until freed elsewhere: see .cc
  Arena(const Arena&) = delete;

  // Aligned to 256 bytes; null for zero bytes. With a stream, the memory may be reused by that stream as soon as it is
  // freed; without one, only when all work that was on the device's streams at the time of the free is done.
  // Error{out_of_memory} says wanted, held, limit and the device's free memory.
  void* allocate(size_t bytes, device::StreamRef stream);
  void* reserve(size_t bytes);  // exactly, from the driver: for what lives as long as the session
  void free(void* address) noexcept;
  void shrink();  // gives chunks without a block in use back to the driver
  Stats stats() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Streams which may hold work on memory that is freed without a stream. Streams enlist themselves while they live.
void enlist(device::StreamRef stream);
void delist(device::StreamRef stream);

}  // namespace encore::memory
