#include "device/virtual/address_space.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>

#include "device/error.h"
#include "device/virtual/poison.h"
#include "device/virtual/registry.h"

namespace encore::device::virtual_gpu {
namespace {

constexpr size_t kBytes = size_t(128) << 30;  // of names, and as much of memory above them; a page costs when touched
constexpr size_t kStep = size_t(16) << 20;    // memory is opened by
constexpr size_t kAlignment = 256, kGap = 256;
constexpr size_t kResting = size_t(32) << 20;  // put back, and not carved again yet

// A word of a functor may be a pair of numbers. No pair of sizes looks like a name, since the lower half of a name (of
// the first 2 GiB) has its highest bit set: as a number it is negative. What has the same upper half and is positive is
// reserved too, or else it would be the host's.
constexpr size_t kWindow = size_t(1) << 32;
constexpr uintptr_t kLowerHalf = uintptr_t(1) << 31;

// Linux has programs, heaps, libraries and stacks above.
constexpr uintptr_t kLowestOfHost = uintptr_t(0x5000) << 32;
constexpr uintptr_t kHighestOfHost = uintptr_t(1) << 48;
constexpr uintptr_t kNowhere = uintptr_t(1) << 55;  // no address of a process has this bit

constexpr size_t whole(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }
constexpr size_t extent(size_t bytes) { return whole(bytes, kAlignment) + kGap; }

class AddressSpace {
 public:
  AddressSpace() {
    constexpr size_t kReserved = 2 * kBytes + 2 * kWindow;
    void* const found = mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED)
      fail(Code::out_of_memory, "the virtual GPU cannot reserve ", kReserved,
           " bytes of addresses: ", std::strerror(errno), "; is there a limit to them (ulimit -v)?");
    begin_ = whole(uintptr_t(found), kWindow) + kLowerHalf;
    next_ = begin_ + kStep;
  }

  // Kernels may hold addresses on both sides of what they read.
  bool is_name(uintptr_t address) const {
    return address - begin_ < next_.load(std::memory_order_relaxed) - begin_ + kStep;
  }

  uintptr_t carve(size_t bytes) {
    const size_t wanted = extent(bytes);
    const std::lock_guard lock(mutex_);
    for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
      if (hole->second < wanted) continue;
      const auto [address, size] = *hole;
      holes_.erase(hole);
      if (size > wanted) holes_[address + wanted] = size - wanted;
      return address;
    }
    const uintptr_t next = next_.load(std::memory_order_relaxed);
    if (wanted > begin_ + kBytes - kStep - next || !open(next + wanted)) return 0;
    next_.store(next + wanted, std::memory_order_relaxed);
    return next;
  }

  void put_back(uintptr_t address, size_t bytes) {
    const std::lock_guard lock(mutex_);
    resting_.push_back({address, extent(bytes)});
    resting_bytes_ += extent(bytes);
    while (resting_bytes_ > kResting) {
      const Extent oldest = resting_.front();
      resting_.pop_front();
      resting_bytes_ -= oldest.bytes;
      make_hole(oldest);
    }
  }

 private:
  struct Extent {
    uintptr_t address;
    size_t bytes;
  };

  // Opens the memory of all names below `end`.
  bool open(uintptr_t end) {
    const uintptr_t opened = begin_ + opened_;
    if (end <= opened) return true;
    const size_t more = std::min(whole(end - opened, kStep), kBytes - opened_);
    void* const memory = reinterpret_cast<void*>(opened + kBytes);
    if (mprotect(memory, more, PROT_READ | PROT_WRITE)) return false;
    poison(memory, more);
    opened_ += more;
    return true;
  }

  void make_hole(Extent extent) {
    const auto after = holes_.lower_bound(extent.address);
    if (after != holes_.end() && extent.address + extent.bytes == after->first) {
      extent.bytes += after->second;
      holes_.erase(after);
    }
    const auto next = holes_.lower_bound(extent.address);
    if (next != holes_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == extent.address) {
        before->second += extent.bytes;
        return;
      }
    }
    holes_[extent.address] = extent.bytes;
  }

  uintptr_t begin_;
  std::atomic<uintptr_t> next_;  // nothing from here on has been carved yet
  std::mutex mutex_;
  // Guarded by the mutex:
  size_t opened_ = 0;
  std::map<uintptr_t, size_t> holes_;
  std::deque<Extent> resting_;
  size_t resting_bytes_ = 0;
};

AddressSpace& space() {
  static auto& space = *new AddressSpace;  // workers may outlive static destructors
  return space;
}

// Whether the host has memory there. Of what is not in use nobody holds the address.
bool is_of_host(uintptr_t address) {
  if (address < kLowestOfHost || address >= kHighestOfHost) return false;
  static const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  unsigned char resident = 0;
  return mincore(reinterpret_cast<void*>(address / page * page), 1, &resident) == 0 && (resident & 1);
}

uintptr_t followed(uintptr_t word) {
  if (space().is_name(word)) return word + kBytes;
  if (!is_of_host(word) || find(reinterpret_cast<void*>(word))) return word;
  return word | kNowhere;
}

}  // namespace

void* carve(size_t bytes) { return bytes < kBytes ? reinterpret_cast<void*>(space().carve(bytes)) : nullptr; }
void put_back(void* address, size_t bytes) { space().put_back(uintptr_t(address), bytes); }

void* reached(const void* address) {
  return reinterpret_cast<void*>(uintptr_t(address) + (space().is_name(uintptr_t(address)) ? kBytes : 0));
}

void* followed(const void* address) { return reinterpret_cast<void*>(followed(uintptr_t(address))); }

// Padding and members that were never written may hold a pointer's remains, whose lower bytes are other members. What
// is changed are upper bits alone, so these stay as they are.
void follow_all(void* functor, size_t bytes) {
  auto* at = static_cast<unsigned char*>(functor);
  for (; bytes >= sizeof(uintptr_t); at += sizeof(uintptr_t), bytes -= sizeof(uintptr_t)) {
    uintptr_t word;
    std::memcpy(&word, at, sizeof word);
    if (const uintptr_t there = followed(word); there != word) std::memcpy(at, &there, sizeof there);
  }
}

}  // namespace encore::device::virtual_gpu
