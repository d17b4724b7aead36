#include "memory/source.h"

#include <cstdint>
#include <utility>

#include "device/device.h"
#include "device/error.h"
#include "device/gone.h"
#include "device/graph.h"
#include "device/memory.h"
#include "memory/block_index.h"
#include "memory/here.h"

namespace encore::memory {

namespace {

// Sizes that no device has are not left to the driver's arithmetic.
void check_size(size_t bytes) {
  if (bytes > size_t(1) << 46) fail(Code::out_of_memory, "no device has ", bytes, " bytes");
}

}  // namespace

PoolSource::PoolSource(int device, size_t keep_bytes, size_t keep_on_shrink_bytes)
    : Source(device), keep_bytes_(keep_bytes), keep_on_shrink_bytes_(keep_on_shrink_bytes) {}

PoolSource::~PoolSource() {
  try {
    const device::RelaxedCapture relaxed;
    made_.reset();
  } catch (const std::exception&) {  // the driver is gone, and the memory with it
  }
}

const PoolSource::Pool& PoolSource::pool() {
  std::call_once(once_, [this] {
    made_.reset(new Pool{device::MemoryPool(device, keep_bytes_), device::Stream(device)});
    pool_.store(made_.get(), std::memory_order_release);
  });
  return *made_;
}

size_t PoolSource::held_bytes() const {
  const Pool* const pool = pool_.load(std::memory_order_acquire);
  return pool ? pool->pool.held_bytes() : 0;
}

void* PoolSource::take(size_t bytes) {
  check_size(bytes);
  const device::Current current(device);
  const device::RelaxedCapture relaxed;
  const auto& [pool, stream] = this->pool();
  void* chunk = pool.allocate(stream, bytes);
  stream.ref().synchronize();
  return chunk;
}

void PoolSource::give_back(void* chunk) noexcept {
  try {
    const device::Current current(device);
    const device::RelaxedCapture relaxed;
    device::free_async(pool().stream, chunk);
    pool().stream.ref().synchronize();  // only then does the pool let go of memory
  } catch (const std::exception& e) {
    device::complain("device memory could not be given back", e);
  }
}

void PoolSource::shrink() {
  if (!pool_) return;
  const device::RelaxedCapture relaxed;
  pool().pool.trim(keep_on_shrink_bytes_);
}

void* PoolSource::allocate(device::StreamRef stream, size_t bytes) {
  check_size(bytes);
  const device::RelaxedCapture relaxed;
  return pool().pool.allocate(stream, bytes);
}

void PoolSource::free(device::StreamRef stream, void* address) {
  const device::RelaxedCapture relaxed;
  device::free_async(stream, address);
}

namespace {

// What an application does in its callbacks is no part of the capture or the run that led to them, and may be what a
// capture forbids; it is done on the source's device.
struct Elsewhere {
  explicit Elsewhere(int device) : current(device) {}
  ~Elsewhere() { here = before; }
  const device::Current current;
  const device::RelaxedCapture relaxed;
  const Here before = std::exchange(here, {});
};

}  // namespace

void* ExternalSource::take(size_t bytes) {
  const Elsewhere elsewhere(device);
  void* const chunk = external_.allocate(bytes);
  if (!chunk) fail(Code::out_of_memory, "gpu_external_alloc has no ", bytes, " bytes");
  const bool is_there = device::place_of(chunk) == device::Place::device;
  if (is_there && uintptr_t(chunk) % kAlignment == 0) return chunk;
  external_.free(chunk);
  require(is_there, "gpu_external_alloc gave ", chunk, ", which is no device memory");
  fail(Code::invalid_input, "gpu_external_alloc gave ", chunk, ", which is not aligned to ", kAlignment,
       " bytes, as device memory has to be");
}

void ExternalSource::give_back(void* chunk) noexcept {
  try {
    const Elsewhere elsewhere(device);
    external_.free(chunk);
  } catch (const std::exception& e) {
    device::complain("gpu_external_free could not be called", e);
  }
}

void ExternalSource::shrink() {
  const Elsewhere elsewhere(device);
  if (external_.empty_cache) external_.empty_cache();
}

}  // namespace encore::memory
