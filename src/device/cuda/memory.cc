#include "device/memory.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <mutex>

#include "device/cuda/capture.h"
#include "device/cuda/check.h"
#include "device/cuda/peers.h"
#include "device/device.h"
#include "device/graph.h"

namespace encore::device {

using cuda::check;

namespace {

cudaStream_t of(StreamRef stream) { return static_cast<cudaStream_t>(stream.native()); }

std::string mebibytes(size_t bytes) {
  char words[32];
  std::snprintf(words, sizeof words, "%.1f MiB", double(bytes) / (1 << 20));
  return words;
}

// What there is for `bytes`, at least one granule: kernels read 16 aligned bytes at once, at the end of memory, too,
// and compute-sanitizer takes what was not asked for as nobody's.
size_t whole_granules(size_t bytes) {
  constexpr size_t kGranule = 16;
  if (bytes > SIZE_MAX - kGranule) return bytes;
  return bytes == 0 ? kGranule : (bytes + kGranule - 1) / kGranule * kGranule;
}

void check_allocation(cudaError_t result, int device, size_t bytes, const char* call) {
  if (result != cudaErrorMemoryAllocation) return check(result, call);
  cudaGetLastError();
  std::string state = "how much is free is not known";
  try {
    RelaxedCapture relaxed;
    const MemoryInfo info = memory_info(device);
    state = text(mebibytes(info.free_bytes), " of ", mebibytes(info.total_bytes), " are free");
  } catch (const Error&) {  // the shortage is what matters
  }
  throw Error(Code::out_of_memory,
              text("device ", device, " has no ", bytes, " bytes (", mebibytes(bytes), ") left; ", state), call);
}

cudaMemPool_t make_pool(int device, uint64_t keep_bytes) {
  Current current(device);
  RelaxedCapture relaxed;
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {.type = cudaMemLocationTypeDevice, .id = device};
  cudaMemPool_t pool;
  check(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate");
  const cudaError_t result = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_bytes);
  if (result != cudaSuccess) cudaMemPoolDestroy(pool);
  check(result, "cudaMemPoolSetAttribute");
  cuda::share_with_peers(pool, device);
  return pool;
}

void* allocate_from(cudaMemPool_t pool, StreamRef stream, size_t bytes) {
  void* address = nullptr;
  check_allocation(cudaMallocFromPoolAsync(&address, whole_granules(bytes), pool, of(stream)), stream.device(), bytes,
                   "cudaMallocFromPoolAsync");
  cuda::note_capture(stream);
  return address;
}

// One pool a device, of our own: the device's default one belongs to everybody in the process. Never destroyed, since
// what was allocated from it may outlive any object of ours.
class Pools {
 public:
  // Null if nothing was allocated on the device so far.
  cudaMemPool_t find(int device) const {
    if (device < 0 || device >= kMaxDevices) fail(Code::no_device, "there is no device ", device);
    return pools_[device].load(std::memory_order_acquire);
  }
  cudaMemPool_t get(int device) {
    if (cudaMemPool_t pool = find(device)) return pool;
    std::lock_guard lock(mutex_);
    if (cudaMemPool_t pool = find(device)) return pool;
    const cudaMemPool_t pool = make_pool(device, UINT64_MAX);
    pools_[device].store(pool, std::memory_order_release);
    return pool;
  }

 private:
  std::mutex mutex_;
  std::array<std::atomic<cudaMemPool_t>, kMaxDevices> pools_{};
};
Pools& pools() {
  static Pools pools;
  return pools;
}

// What a destructor frees while the process ends is gone already.
void check_free(cudaError_t result, const char* call) {
  if (result == cudaErrorCudartUnloading) return;
  check(result, call);
}

// Whether the stream captures; then no end may be pageable memory, which the graph could not keep alive.
bool check_copy(StreamRef stream, const void* to, const void* from) {
  if (stream.capture_status() == CaptureStatus::none) return false;
  if (place_of(from) == Place::host || place_of(to) == Place::host)
    cuda::forbid(stream, "copying from or to pageable host memory", "cudaMemcpyAsync");
  return true;
}

}  // namespace

Place place_of(const void* address) {
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) {
    cudaGetLastError();
    return Place::host;
  }
  switch (attributes.type) {
    case cudaMemoryTypeHost: return Place::pinned;
    case cudaMemoryTypeDevice:
    case cudaMemoryTypeManaged: return Place::device;
    default: return Place::host;
  }
}

MemoryInfo memory_info(int device) {
  Current current(device);
  MemoryInfo info;
  check(cudaMemGetInfo(&info.free_bytes, &info.total_bytes), "cudaMemGetInfo");
  return info;
}

void* allocate(int device, size_t bytes) {
  Current current(device);
  void* address = nullptr;
  check_allocation(cudaMalloc(&address, whole_granules(bytes)), device, bytes, "cudaMalloc");
  return address;
}
void free(int device, void* address) {
  if (!address) return;
  int now;
  if (cudaGetDevice(&now) == cudaErrorCudartUnloading) return;
  Current current(device);
  check_free(cudaFree(address), "cudaFree");
}

void* allocate_async(StreamRef stream, size_t bytes) {
  return allocate_from(pools().get(stream.device()), stream, bytes);
}
void free_async(StreamRef stream, void* address) {
  if (!address) return;
  check_free(cudaFreeAsync(address, of(stream)), "cudaFreeAsync");
  cuda::note_capture(stream);
}
void trim_pool(int device, size_t keep_bytes) {
  if (cudaMemPool_t pool = pools().find(device)) check(cudaMemPoolTrimTo(pool, keep_bytes), "cudaMemPoolTrimTo");
}

MemoryPool::MemoryPool(int device, size_t keep_bytes) : native_(make_pool(device, keep_bytes)) {}
MemoryPool::~MemoryPool() {
  if (!native_) return;
  const auto pool = static_cast<cudaMemPool_t>(native_);
  cuda::share_no_more(pool);
  cuda::report(cudaMemPoolDestroy(pool), "cudaMemPoolDestroy");
}
void* MemoryPool::allocate(StreamRef stream, size_t bytes) const {
  return allocate_from(static_cast<cudaMemPool_t>(native_), stream, bytes);
}
void MemoryPool::trim(size_t keep_bytes) const {
  check(cudaMemPoolTrimTo(static_cast<cudaMemPool_t>(native_), keep_bytes), "cudaMemPoolTrimTo");
}
size_t MemoryPool::held_bytes() const {
  uint64_t held = 0;
  check(cudaMemPoolGetAttribute(static_cast<cudaMemPool_t>(native_), cudaMemPoolAttrReservedMemCurrent, &held),
        "cudaMemPoolGetAttribute");
  return held;
}

void* allocate_pinned(size_t bytes) {
  void* address = nullptr;
  const cudaError_t result =
      cudaHostAlloc(&address, whole_granules(bytes), cudaHostAllocPortable | cudaHostAllocMapped);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw Error(Code::out_of_memory,
                text("the system could not pin ", bytes, " bytes (", mebibytes(bytes), ") of host memory"),
                "cudaHostAlloc");
  }
  check(result, "cudaHostAlloc");
  return address;
}
void free_pinned(void* address) {
  if (address) check_free(cudaFreeHost(address), "cudaFreeHost");
}

void copy(StreamRef stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const bool captures = check_copy(stream, to, from);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, of(stream)), "cudaMemcpyAsync");
  if (captures) cuda::note_capture(stream);
}
void copy_peer(StreamRef stream, void* to, int to_device, const void* from, int from_device, size_t bytes) {
  if (bytes == 0) return;
  if (to_device == from_device) return copy(stream, to, from, bytes);
  const bool captures = check_copy(stream, to, from);
  if (!captures) connect_peers(to_device, from_device);
  check(cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, of(stream)), "cudaMemcpyPeerAsync");
  if (captures) cuda::note_capture(stream);
}
void fill(StreamRef stream, void* to, unsigned char value, size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(to, value, bytes, of(stream)), "cudaMemsetAsync");
  cuda::note_capture(stream);
}

}  // namespace encore::device
