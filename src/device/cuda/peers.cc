#include "device/cuda/peers.h"

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

void open(cudaMemPool_t pool, int reader) {
  cudaMemAccessDesc access = {};
  access.location = {.type = cudaMemLocationTypeDevice, .id = reader};
  access.flags = cudaMemAccessFlagsProtReadWrite;
  check(cudaMemPoolSetAccess(pool, &access, 1), "cudaMemPoolSetAccess");
}

// For what cudaMalloc gave; pools are opened one by one.
void open(int owner, int reader) {
  const Current current(reader);
  const cudaError_t result = cudaDeviceEnablePeerAccess(owner, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();  // by the application
  else
    check(result, "cudaDeviceEnablePeerAccess");
}

bool can_reach(int owner, int reader) {
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, reader, owner), "cudaDeviceCanAccessPeer");
  return can != 0;
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
  const bool can = can_reach(device, other) && can_reach(other, device);
  if (can) {
    open(device, other);
    open(other, device);
    for (const auto& pool : peers().pools)
      if (pool.device == device || pool.device == other) open(pool.native, pool.device == device ? other : device);
  }
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
