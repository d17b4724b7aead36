// What a captured graph reads and writes beside its own memory. Its owner may free it, and yet nobody else gets it.
#pragma once
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace encore::memory {

// Becomes true when an owner frees memory that a graph uses.
using GivenBack = std::shared_ptr<std::atomic<bool>>;

// Who hands out memory in blocks.
class Retainable {
 public:
  struct Retained {
    const char* address;
    size_t bytes;
    bool counts;  // false: of the pool of the graph that the calling thread captures, which keeps it anyway
  };
  virtual ~Retainable() = default;
  // The block in use that the address lies in, which if freed stays out of use until it has been let go of as often;
  // none if there is no such block here. Its owner's free() is told.
  virtual std::optional<Retained> retain(const void* address, const GivenBack& told) = 0;
  virtual void let_go(const void* block) noexcept = 0;
};
void offer(std::weak_ptr<Retainable> memory);

// A graph's share in all that is offered. Used by one thread at a time.
class Retention {
 public:
  Retention() = default;
  ~Retention();
  Retention(const Retention&) = delete;
  // Retains what lies there, if anybody here handed it out. Any address, at any time; it costs little the second time.
  void note(const void* address);
  size_t bytes() const { return bytes_; }
  // Whether an owner has freed some of it since: then whoever ran the graph has other memory by now. In any thread.
  bool is_given_back() const { return given_back_->load(std::memory_order_relaxed); }

 private:
  struct Known {
    const char* end;
    std::shared_ptr<Retainable> of;  // null if there is nothing to let go of
  };
  std::map<const char*, Known> known_;  // by the block's address
  size_t bytes_ = 0;
  const GivenBack given_back_ = std::make_shared<std::atomic<bool>>(false);
};

// Those to be told of a block.
class ToldOf {
 public:
  void add(const GivenBack& told) {
    std::erase_if(all_, [](const auto& each) { return each.expired(); });
    all_.push_back(told);
  }
  void tell() const {
    for (const auto& each : all_)
      if (const auto told = each.lock()) told->store(true, std::memory_order_relaxed);
  }

 private:
  std::vector<std::weak_ptr<std::atomic<bool>>> all_;
};

}  // namespace encore::memory
