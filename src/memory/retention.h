// What a captured graph reads and writes beside its own memory. Its owner may free it, and yet nobody else gets it.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <optional>

namespace encore::memory {

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
  // none if there is no such block here.
  virtual std::optional<Retained> retain(const void* address) = 0;
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

 private:
  struct Known {
    const char* end;
    std::shared_ptr<Retainable> of;  // null if there is nothing to let go of
  };
  std::map<const char*, Known> known_;  // by the block's address
  size_t bytes_ = 0;
};

}  // namespace encore::memory
