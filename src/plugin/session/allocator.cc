#include "plugin/session/allocator.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "device/device.h"
#include "device/gone.h"
#include "device/graph.h"
#include "device/memory.h"
#include "plugin/host/fence.h"
#include "plugin/session/ep.h"
#include "plugin/session/registration.h"
#include "plugin/session/stream.h"

namespace encore::plugin {
namespace {

constexpr size_t kSmallestPinnedBytes = 256;

thread_local std::string allocation_failure;

constexpr char kMissing = 0;  // only its address is used

// What both kinds share: onnxruntime's callbacks and the fence around them.
class Allocator : public OrtAllocator {
 public:
  Allocator(std::shared_ptr<Registration> registration, const OrtMemoryInfo* info)
      : OrtAllocator{},
        registration_(std::move(registration)),
        info_(info),
        device_(int(ort().ep->MemoryDevice_GetDeviceId(ort().ep->MemoryInfo_GetMemoryDevice(info)))) {
    version = ort().version;
    Alloc = [](OrtAllocator* self, size_t bytes) noexcept {
      return from(self).attempt([&](Allocator& mine) { return mine.allocate(bytes, {}); });
    };
    AllocOnStream = [](OrtAllocator* self, size_t bytes, OrtSyncStream* stream) noexcept {
      void* const made = from(self).attempt([&](Allocator& mine) {
        return SyncStream::is_nameless(stream) ? mine.allocate_for_run(bytes)
                                               : mine.allocate(bytes, SyncStream::work_of(stream));
      });
      return made || bytes == 0 || !from(self).is_for_feed(bytes, SyncStream::from(stream)) ? made : missing();
    };
    Reserve = [](OrtAllocator* self, size_t bytes) noexcept {
      return from(self).attempt([&](Allocator& mine) { return mine.reserve(bytes); });
    };
    Free = [](OrtAllocator* self, void* address) noexcept {
      if (address != &kMissing) from(self).free(address);
    };
    Info = [](const OrtAllocator* self) noexcept { return static_cast<const Allocator*>(self)->info_; };
    GetStats = [](const OrtAllocator* self, OrtKeyValuePairs** out) noexcept -> OrtStatus* {
      return guarded("GetStats", [&] {
        ort().api->CreateKeyValuePairs(out);
        for (const auto& [key, value] : static_cast<const Allocator*>(self)->stats())
          ort().api->AddKeyValuePair(*out, key, std::to_string(value).c_str());
      });
    };
    if (host_has(kAllocatorShrinkApi))
      Shrink = [](OrtAllocator* self) noexcept -> OrtStatus* {
        return guarded_on(from(self).device_, "Shrink", [&] { from(self).shrink(); });
      };
  }
  virtual ~Allocator() = default;
  int device() const { return device_; }

 protected:
  using Stats = std::vector<std::pair<const char*, uint64_t>>;
  virtual void* allocate(size_t bytes, device::StreamRef stream) = 0;
  virtual void* allocate_for_run(size_t bytes) = 0;  // which the calling thread is in
  virtual void* reserve(size_t bytes) = 0;
  virtual void free(void* address) noexcept = 0;
  virtual void shrink() = 0;
  virtual Stats stats() const = 0;
  // Whether onnxruntime wants memory to copy a feed to, for certain.
  virtual bool is_for_feed(size_t, const SyncStream*) const noexcept { return false; }

 private:
  static void* missing() { return const_cast<char*>(&kMissing); }
  static Allocator& from(OrtAllocator* allocator) { return *static_cast<Allocator*>(allocator); }

  template <class Allocate>
  void* attempt(Allocate&& allocate) noexcept {
    try {
      return allocate(*this);
    } catch (const std::exception& error) {
      registration_->log().error(error.what());
      try {
        allocation_failure = error.what();
      } catch (...) {  // the log has it
      }
      return nullptr;
    }
  }

  std::shared_ptr<Registration> registration_;
  const OrtMemoryInfo* info_;
  const int device_;
};

class DeviceAllocator final : public Allocator {
 public:
  DeviceAllocator(std::shared_ptr<Registration> registration, const OrtMemoryInfo* info,
                  std::shared_ptr<memory::Arena> arena)
      : Allocator(std::move(registration), info), arena_(std::move(arena)) {}

 private:
  void* allocate(size_t bytes, device::StreamRef stream) override { return arena_->allocate(bytes, stream); }
  void* allocate_for_run(size_t bytes) override { return allocate(bytes, Ep::foresee_stream_of_run(*arena_)); }
  void* reserve(size_t bytes) override { return arena_->reserve(bytes); }
  // Inside of a run only the stream that it was made for has seen it. Afterwards it is the application's, which may
  // have handed it to another session.
  void free(void* address) noexcept override {
    arena_->free(address, Ep::thread_runs_in(*arena_), Ep::stream_foreseen_wrongly(*arena_));
  }
  void shrink() override { arena_->shrink(); }
  // Before the first node of a run it also wants a block for what an earlier run has made, and goes on without; that is
  // no larger than all that there was then.
  bool is_for_feed(size_t bytes, const SyncStream* stream) const noexcept override {
    try {
      return stream && stream->ep() && !stream->ep()->nodes_have_run() && bytes > arena_->stats().peak_in_use_bytes;
    } catch (const std::exception&) {  // the device has failed
      return false;
    }
  }
  Stats stats() const override {
    const memory::Stats s = arena_->stats();
    return {{"Limit", std::min<uint64_t>(s.limit_bytes, INT64_MAX)},  // onnxruntime reads signed numbers
            {"InUse", s.in_use_bytes},
            {"TotalAllocated", s.held_bytes},
            {"MaxInUse", s.peak_in_use_bytes},
            {"NumAllocs", uint64_t(s.allocations)},
            {"NumReserves", uint64_t(s.reserves)},
            {"NumArenaExtensions", uint64_t(s.driver_allocations)},
            {"NumArenaShrinkages", uint64_t(s.shrinks)},
            {"MaxAllocSize", s.largest_bytes}};
  }

  std::shared_ptr<memory::Arena> arena_;
};

class PinnedAllocator final : public Allocator {
 public:
  PinnedAllocator(std::shared_ptr<Registration> registration, const OrtMemoryInfo* info,
                  std::shared_ptr<PinnedPool> pool)
      : Allocator(std::move(registration), info), pool_(std::move(pool)) {}

 private:
  void* allocate(size_t bytes, device::StreamRef) override {
    const device::Current current(device());
    return pool_->allocate(bytes);
  }
  void* allocate_for_run(size_t bytes) override { return allocate(bytes, {}); }
  void* reserve(size_t bytes) override { return allocate(bytes, {}); }
  void free(void* address) noexcept override {
    on_device_at_the_end(device(), [&] { pool_->free(address); });
  }
  void shrink() override {
    const device::Current current(device());
    pool_->shrink();
  }
  Stats stats() const override {
    const PinnedPool::Stats s = pool_->stats();
    return {{"Limit", INT64_MAX},
            {"InUse", s.in_use_bytes},
            {"TotalAllocated", s.held_bytes},
            {"MaxInUse", s.peak_in_use_bytes},
            {"NumAllocs", uint64_t(s.allocations)},
            {"NumReserves", 0},
            {"NumArenaExtensions", uint64_t(s.driver_allocations)},
            {"NumArenaShrinkages", uint64_t(s.shrinks)},
            {"MaxAllocSize", s.largest_bytes}};
  }

  std::shared_ptr<PinnedPool> pool_;
};

}  // namespace

memory::Settings memory_settings(const Options& options) {
  return {.max_bytes = options.gpu_mem_limit,
          .reuse = options.use_mempool ? memory::Reuse::stream_order
                   : options.use_arena ? memory::Reuse::blocks
                                       : memory::Reuse::none,
          .external = options.external,
          .grow_by_doubling = options.grow_by_doubling,
          .first_chunk_bytes = options.initial_chunk_bytes,
          .growth_after_shrink_bytes = options.initial_growth_bytes,
          .largest_growth_bytes = options.largest_growth_bytes,
          .dead_bytes = options.dead_bytes_per_chunk,
          .pool_keeps_bytes = options.mempool_release_threshold,
          .pool_keeps_on_shrink_bytes = options.mempool_keep_on_shrink};
}

PinnedPool::~PinnedPool() {
  for (const auto& [address, bytes] : sizes_) {
    try {
      device::free_pinned(address);
    } catch (const std::exception&) {  // the driver is gone, and the memory with it
    }
  }
}

void* PinnedPool::allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  if (bytes > SIZE_MAX / 2) fail(Code::out_of_memory, bytes, " bytes of pinned memory were asked for");
  const size_t rounded = std::bit_ceil(std::max(bytes, kSmallestPinnedBytes));
  const std::lock_guard lock(mutex_);
  void* address = nullptr;
  const auto [first, end] = kept_.equal_range(rounded);
  const auto kept = std::find_if(first, end, [](const auto& block) { return memory::is_done(block.second.tails); });
  if (kept != end) {
    address = kept->second.address;
    kept_.erase(kept);
  } else {
    const device::RelaxedCapture relaxed;  // page-locking memory is no work of any stream
    try {
      address = device::allocate_pinned(rounded);
    } catch (const Error& error) {
      if (error.code() != Code::out_of_memory || !give_back()) throw;
      address = device::allocate_pinned(rounded);
    }
    sizes_.emplace(address, rounded);
    stats_.held_bytes += rounded;
    ++stats_.driver_allocations;
  }
  stats_.in_use_bytes += rounded;
  stats_.peak_in_use_bytes = std::max(stats_.peak_in_use_bytes, stats_.in_use_bytes);
  stats_.largest_bytes = std::max(stats_.largest_bytes, rounded);
  ++stats_.allocations;
  return address;
}

void PinnedPool::free(void* address) noexcept {
  if (!address) return;
  try {
    auto tails = memory::tails();  // copies may still be on their way
    const std::lock_guard lock(mutex_);
    const size_t bytes = sizes_.at(address);
    if (const auto found = retained_.find(address); found != retained_.end()) {
      found->second.given_up = true;
      found->second.told.tell();
    } else {
      kept_.emplace(bytes, Kept{address, std::move(tails)});
    }
    stats_.in_use_bytes -= bytes;
  } catch (const std::exception& error) {  // the block stays out of use
    device::complain(text("pinned memory at ", address, " could not be freed"), error);
  }
}

std::optional<memory::Retainable::Retained> PinnedPool::retain(const void* address, const memory::GivenBack& told) {
  const auto* const at = static_cast<const char*>(address);
  const std::lock_guard lock(mutex_);
  auto found = sizes_.find(const_cast<void*>(address));
  if (found == sizes_.end())
    found = std::ranges::find_if(sizes_, [at](const auto& block) {
      const auto* const begin = static_cast<const char*>(block.first);
      return begin <= at && at < begin + block.second;
    });
  if (found == sizes_.end()) return std::nullopt;
  auto& graphs = retained_[found->first];
  ++graphs.graphs;
  graphs.told.add(told);
  return Retained{static_cast<char*>(found->first), found->second, true};
}

void PinnedPool::let_go(const void* block) noexcept {
  try {
    auto tails = memory::tails();
    const std::lock_guard lock(mutex_);
    const auto found = retained_.find(block);
    if (--found->second.graphs > 0) return;
    void* const address = const_cast<void*>(block);
    if (found->second.given_up) kept_.emplace(sizes_.at(address), Kept{address, std::move(tails)});
    retained_.erase(found);
  } catch (const std::exception& error) {  // the block stays out of use
    device::complain(text("pinned memory at ", block, " could not be freed"), error);
  }
}

void PinnedPool::shrink() {
  const std::lock_guard lock(mutex_);
  ++stats_.shrinks;
  give_back();
}

// What is kept and idle; false if there was nothing.
bool PinnedPool::give_back() {
  bool any = false;
  const device::RelaxedCapture relaxed;
  for (auto kept = kept_.begin(); kept != kept_.end();) {
    const auto& [bytes, block] = *kept;
    if (!memory::is_done(block.tails)) {
      ++kept;
      continue;
    }
    device::free_pinned(block.address);
    sizes_.erase(block.address);
    stats_.held_bytes -= bytes;
    kept = kept_.erase(kept);
    any = true;
  }
  return any;
}

PinnedPool::Stats PinnedPool::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

OrtAllocator* make_device_allocator(std::shared_ptr<Registration> registration, const OrtMemoryInfo* info,
                                    std::shared_ptr<memory::Arena> arena) {
  return new DeviceAllocator(std::move(registration), info, std::move(arena));
}
OrtAllocator* make_pinned_allocator(std::shared_ptr<Registration> registration, const OrtMemoryInfo* info,
                                    std::shared_ptr<PinnedPool> pool) {
  return new PinnedAllocator(std::move(registration), info, std::move(pool));
}
void release_allocator(OrtAllocator* allocator) noexcept {
  auto* const mine = static_cast<Allocator*>(allocator);
  delete_on(mine->device(), mine);
}

bool is_missing(const void* address) { return !address || address == &kMissing; }

std::string take_allocation_failure() { return std::exchange(allocation_failure, {}); }

void fail_without_memory(const std::string& what) {
  const std::string why = take_allocation_failure();
  fail(Code::out_of_memory, what, " has no memory",
       why.empty() ? ": what was bound was made when there was none left" : ": ", why);
}

}  // namespace encore::plugin
