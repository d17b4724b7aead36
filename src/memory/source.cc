#include "memory/source.h"

#include <cstdint>
#include <cstdio>

#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"
#include "memory/block_index.h"

namespace encore::memory {

namespace {

// Sizes that no device has are not left to the driver's arithmetic.
void check_size(size_t bytes) {
  if (bytes > size_t(1) << 46) fail(Code::out_of_memory, "no device has ", bytes, " bytes");
}

}  // namespace

PoolSource::PoolSource(int device, size_t keep_bytes, size_t keep_on_shrink_bytes)
    : Source(device), keep_on_shrink_bytes_(keep_on_shrink_bytes), pool_(device, keep_bytes), stream_(device) {}

void* PoolSource::take(size_t bytes) {
  check_size(bytes);
  const device::Current current(device);
  const device::RelaxedCapture relaxed;
  void* chunk = pool_.allocate(stream_, bytes);
  stream_.ref().synchronize();
  return chunk;
}

void PoolSource::give_back(void* chunk) noexcept {
  try {
    const device::Current current(device);
    const device::RelaxedCapture relaxed;
    device::free_async(stream_, chunk);
    stream_.ref().synchronize();  // only then does the pool let go of memory
  } catch (const std::exception& e) {
    std::fprintf(stderr, "encore: device memory could not be given back: %s\n", e.what());
  }
}

void PoolSource::shrink() {
  const device::RelaxedCapture relaxed;
  pool_.trim(keep_on_shrink_bytes_);
}

void* PoolSource::allocate(device::StreamRef stream, size_t bytes) {
  check_size(bytes);
  const device::RelaxedCapture relaxed;
  return pool_.allocate(stream, bytes);
}

void PoolSource::free(device::StreamRef stream, void* address) {
  const device::RelaxedCapture relaxed;
  device::free_async(stream, address);
}

void* ExternalSource::take(size_t bytes) {
  void* const chunk = external_.allocate(bytes);
  if (!chunk) fail(Code::out_of_memory, "gpu_external_alloc has no ", bytes, " bytes");
  if (uintptr_t(chunk) % kAlignment == 0) return chunk;
  external_.free(chunk);
  fail(Code::invalid_input, "gpu_external_alloc gave ", chunk, ", which is not aligned to ", kAlignment,
       " bytes, as device memory has to be");
}

}  // namespace encore::memory
