#include "device/memory.h"

#include <cstring>

#include "device/error.h"
#include "device/label.h"
#include "device/virtual/address_space.h"
#include "device/virtual/capture.h"
#include "device/virtual/forked.h"
#include "device/virtual/registry.h"
#include "device/virtual/stream_state.h"
#include "device/virtual/trace.h"

namespace encore::device {

using namespace virtual_gpu;

void* allocate(int device, size_t bytes) {
  check_unsafe_call("allocating from the driver");
  trace(nullptr, Traced::driver_allocate, {}, Label::current());
  void* address = take(Origin::driver, device, bytes);
  make_fresh(address, bytes);
  return address;
}

void free(int device, void* address) {
  if (is_forked()) return;  // it is the parent's, here and below
  check_unsafe_call("giving memory back to the driver");
  trace(nullptr, Traced::driver_free, {}, Label::current());
  if (!address) return;
  retire(Origin::driver, device, address);
  give_back(address);
}

void* allocate_pinned(size_t bytes) {
  check_unsafe_call("allocating pinned memory");
  trace(nullptr, Traced::driver_allocate, {}, Label::current());
  void* address = take(Origin::pinned, -1, bytes);
  make_fresh(address, bytes);
  return address;
}

void free_pinned(void* address) {
  if (is_forked()) return;
  check_unsafe_call("freeing pinned memory");
  trace(nullptr, Traced::driver_free, {}, Label::current());
  if (!address) return;
  retire(Origin::pinned, -1, address);
  give_back(address);
}

namespace {

void* allocate_from(std::shared_ptr<PoolState> pool, StreamRef ref, size_t bytes) {
  StreamState& stream = state_of(ref);
  std::unique_lock lock(stream.mutex);
  Capture* capture = stream.capturing();
  if (capture)
    capture->check();
  else
    check_unsafe_call("allocating from the pool for a stream that does not capture");
  const Origin origin = capture ? Origin::graph : Origin::pool;
  if (capture) pool.reset();  // the memory is the graph's
  void* address = take(origin, stream.device, bytes, std::move(pool));
  // Fresh in stream order, so that work which does not wait for the allocation races with it.
  auto become_fresh = [address, bytes] { make_fresh(address, bytes); };
  if (capture) {
    make_freed(address, bytes);
    capture->keep(std::shared_ptr<void>(address, [device = stream.device](void* mine) {
      if (is_forked()) return;
      retire(Origin::graph, device, mine);
      give_back(mine);
    }));
    capture->add(stream.lane, NodeKind::allocate, {}, become_fresh);
  } else {
    stream.push(lock, {NodeKind::allocate, {}, Label::current(), become_fresh});
  }
  return address;
}

const std::shared_ptr<PoolState>& state_of(void* native) { return *static_cast<std::shared_ptr<PoolState>*>(native); }

}  // namespace

void* allocate_async(StreamRef stream, size_t bytes) { return allocate_from(nullptr, stream, bytes); }

void free_async(StreamRef ref, void* address) {
  if (!address || is_forked()) return;
  StreamState& stream = state_of(ref);
  std::unique_lock lock(stream.mutex);
  if (Capture* capture = stream.capturing()) {
    capture->check();
    const auto found = find(address);
    if (!found || found->address != address || found->origin != Origin::graph || !capture->keeps(address))
      fail(Code::invalid_input, "cannot free ", address, ": this capture did not allocate it");
    return capture->add(stream.lane, NodeKind::free, {},
                        [address, bytes = found->bytes] { make_freed(address, bytes); });
  }
  check_unsafe_call("giving memory back to the pool in a stream that does not capture");
  retire(Origin::pool, stream.device, address);
  stream.push(lock, {NodeKind::free, {}, Label::current(), [address] { give_back(address); }});
}

void trim_pool(int device, size_t) {
  check_unsafe_call("trimming the pool");
  check_device(device);  // the pool keeps nothing
}

MemoryPool::MemoryPool(int device, size_t keep_bytes) {
  check_device(device);
  native_ = new auto(std::make_shared<PoolState>(device, keep_bytes));
}
MemoryPool::~MemoryPool() {
  if (!native_ || is_forked()) return;
  close(*state_of(native_));
  delete &state_of(native_);
}
void* MemoryPool::allocate(StreamRef stream, size_t bytes) const {
  const auto& pool = state_of(native_);
  if (stream.device() != pool->device)
    fail(Code::invalid_input, "the pool is of device ", pool->device, ", the stream of device ", stream.device());
  return allocate_from(pool, stream, bytes);
}
void MemoryPool::trim(size_t keep_bytes) const {
  check_unsafe_call("trimming a pool");
  virtual_gpu::trim(*state_of(native_), keep_bytes);
}
size_t MemoryPool::held_bytes() const { return virtual_gpu::held_bytes(*state_of(native_)); }

namespace {

// Where the range lies; refuses one that leaves the allocation where it begins.
Place place_of_range(const void* address, size_t bytes, const char* what) {
  const auto found = find(address);
  if (!found) return Place::host;
  if (found->freeing) fail(Code::invalid_input, what, " ", address, ", which has been freed");
  const size_t left = found->bytes - (uintptr_t(address) - uintptr_t(found->address));
  if (bytes > left)
    fail(Code::invalid_input, what, " ", address, " has ", bytes, " bytes, but only ", left, " are allocated there");
  return found->place();
}

}  // namespace

void copy(StreamRef ref, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const Place to_place = place_of_range(to, bytes, "the target of a copy,");
  const Place from_place = place_of_range(from, bytes, "the source of a copy,");
  const bool pageable = to_place == Place::host || from_place == Place::host;
  auto run = [to = reached(to), from = reached(from), bytes] { std::memcpy(to, from, bytes); };
  StreamState& stream = state_of(ref);
  std::unique_lock lock(stream.mutex);
  if (Capture* capture = stream.capturing()) {
    capture->check();
    if (pageable) capture->forbid("copying to or from pageable host memory");
    return capture->add(stream.lane, NodeKind::copy, {}, run);
  }
  stream.push(lock, {NodeKind::copy, {}, Label::current(), run});
  if (!pageable) return;
  auto marker = std::make_shared<Marker>();
  submit(ref, NodeKind::event, {}, [marker] { marker->set(); });
  marker->wait();
}

void copy_peer(StreamRef stream, void* to, int to_device, const void* from, int from_device, size_t bytes) {
  if (bytes == 0) return;
  const auto check = [](const void* address, int device) {
    const auto found = find(address);
    if (!found || found->device != device) fail(Code::invalid_input, address, " is no memory of device ", device);
  };
  check(to, to_device);
  check(from, from_device);
  copy(stream, to, from, bytes);
}

bool connect_peers(int device, int other) {
  check_device(device);
  check_device(other);
  return true;
}

void fill(StreamRef stream, void* to, unsigned char value, size_t bytes) {
  if (bytes == 0) return;
  if (place_of_range(to, bytes, "the target of a fill,") == Place::host)
    fail(Code::invalid_input, "cannot fill ", to, ": it is pageable host memory");
  submit(stream, NodeKind::fill, {}, [to = reached(to), value, bytes] { std::memset(to, value, bytes); });
}

}  // namespace encore::device
