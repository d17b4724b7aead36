#include "device/cuda/peers.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "device/cuda/check.h"
#include "device/device.h"
#include "device/graph.h"
#include "device/memory.h"

namespace encore::device {
namespace {

using cuda::check;

enum class Link : char { unknown, none, open };

struct Peers {
  std::mutex mutex;  // guards the pools, and all changes
  std::array<std::array<std::atomic<Link>, kMaxDevices>, kMaxDevices> links{};
  struct Pool {
    cudaMemPool_t native;
    int device;
  };
  std::vector<Pool> pools;
};
// Never destroyed: pools go while the process ends.
Peers& peers() {
  static Peers& peers = *new Peers;
  return peers;
}

bool succeeded(cudaError_t result) {
  if (result != cudaSuccess) cudaGetLastError();
  return result == cudaSuccess;
}

bool open(cudaMemPool_t pool, int reader) {
  cudaMemAccessDesc access = {};
  access.location = {.type = cudaMemLocationTypeDevice, .id = reader};
  access.flags = cudaMemAccessFlagsProtReadWrite;
  return succeeded(cudaMemPoolSetAccess(pool, &access, 1));
}

// For what cudaMalloc gave; pools are opened one by one.
bool open(int owner, int reader) {
  const Current current(reader);
  const cudaError_t result = cudaDeviceEnablePeerAccess(owner, 0);
  return succeeded(result) || result == cudaErrorPeerAccessAlreadyEnabled;  // by the application
}

bool can_reach(int owner, int reader) {
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, reader, owner), "cudaDeviceCanAccessPeer");
  return can != 0;
}

// Without a link everything works, only slower.
bool connect(int a, int b) {
  if (!can_reach(a, b) || !can_reach(b, a) || !open(a, b) || !open(b, a)) return false;
  return std::ranges::all_of(peers().pools, [&](const Peers::Pool& pool) {
    return (pool.device != a && pool.device != b) || open(pool.native, pool.device == a ? b : a);
  });
}

}  // namespace

bool connect_peers(int device, int other) {
  for (const int each : {device, other})
    if (each < 0 || each >= kMaxDevices) fail(Code::no_device, "there is no device ", each);
  if (device == other) return true;
  auto& link = peers().links[device][other];
  if (const Link known = link.load(std::memory_order_acquire); known != Link::unknown) return known == Link::open;

  const std::lock_guard lock(peers().mutex);
  const RelaxedCapture relaxed;
  const bool can = connect(device, other);
  for (auto* each : {&link, &peers().links[other][device]})
    each->store(can ? Link::open : Link::none, std::memory_order_release);
  return can;
}

namespace cuda {

void share_with_peers(cudaMemPool_t pool, int device) {
  const std::lock_guard lock(peers().mutex);
  for (int other = 0; other < kMaxDevices; ++other)
    if (peers().links[device][other] == Link::open) open(pool, other);
  peers().pools.push_back({pool, device});
}

void share_no_more(cudaMemPool_t pool) noexcept {
  const std::lock_guard lock(peers().mutex);
  std::erase_if(peers().pools, [&](const Peers::Pool& each) { return each.native == pool; });
}

}  // namespace cuda
}  // namespace encore::device
