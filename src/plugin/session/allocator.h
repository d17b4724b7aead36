// Device and pinned memory as onnxruntime's allocators.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory/arena.h"
#include "memory/retention.h"
#include "memory/streams.h"
#include "plugin/host/api_version.h"
#include "plugin/options/options.h"

namespace encore::plugin {

class Registration;

// What the options say of a session's device memory.
memory::Settings memory_settings(const Options& options);

// Freed blocks are kept by size, since page-locking costs far more than an allocation, and serve again when no copy is
// under way any more; they go back with the pool.
class PinnedPool : public memory::Retainable {
 public:
  PinnedPool() = default;
  ~PinnedPool() override;
  PinnedPool(const PinnedPool&) = delete;
  void* allocate(size_t bytes);
  void free(void* address) noexcept;
  void shrink();
  std::optional<Retained> retain(const void* address, const memory::GivenBack& told) override;
  void let_go(const void* block) noexcept override;

  struct Stats {
    size_t in_use_bytes = 0, held_bytes = 0, peak_in_use_bytes = 0, largest_bytes = 0;
    int64_t allocations = 0, driver_allocations = 0, shrinks = 0;
  };
  Stats stats() const;

 private:
  bool give_back();  // with the mutex

  struct ByGraphs {
    int graphs = 0;
    bool given_up = false;  // by its owner
    memory::ToldOf told;
  };
  struct Kept {
    void* address;
    std::vector<memory::Tail> tails;  // of what may still be copying from or to it
  };

  mutable std::mutex mutex_;
  std::unordered_map<void*, size_t> sizes_;  // of every block
  std::multimap<size_t, Kept> kept_;         // not in use
  std::unordered_map<const void*, ByGraphs> retained_;
  Stats stats_;
};

// Allocators keep the registration and their memory alive: onnxruntime may release one after the session is gone.
OrtAllocator* make_device_allocator(std::shared_ptr<Registration> registration, const OrtMemoryInfo* info,
                                    std::shared_ptr<memory::Arena> arena);
OrtAllocator* make_pinned_allocator(std::shared_ptr<Registration> registration, const OrtMemoryInfo* info,
                                    std::shared_ptr<PinnedPool> pool);
void release_allocator(OrtAllocator* allocator) noexcept;

// Null, or what stands for memory that a feed could not have: onnxruntime drops the reason for a null there, but copies
// to what is none, and the copy can say why.
bool is_missing(const void* address);

// onnxruntime's allocators can only answer null. Why this thread's last allocation that failed did so, for the error
// of whoever meets the null; taking it clears it.
std::string take_allocation_failure();
// "output 0 has no memory", and that reason, or that what was bound was made without.
[[noreturn]] void fail_without_memory(const std::string& what);

}  // namespace encore::plugin
