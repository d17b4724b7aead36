// Where arenas and graphs get device memory, and where they give it back.
#pragma once
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>

#include "device/memory.h"
#include "device/stream.h"

namespace encore::memory {

// Nothing of a source is to be called with a lock held: an application's allocator may wait for other threads (if only
// for Python's lock), which in turn may be about to free something. All of it may be called in a thread that captures.
class Source {
 public:
  explicit Source(int device) : device(device) {}
  virtual ~Source() = default;
  Source(const Source&) = delete;

  // Aligned to kAlignment, for use on every stream. Error{out_of_memory} if there is no more.
  virtual void* take(size_t bytes) = 0;
  virtual void give_back(void* chunk) noexcept = 0;  // which is idle
  // What has been given back is to be passed on to where it came from.
  virtual void shrink() = 0;

  const int device;
};

// A pool in which memory changes hands in the order of streams: giving memory straight to the driver would wait for the
// whole device, other sessions' work included.
class PoolSource final : public Source {
 public:
  // The pool keeps up to so much unused memory when the host waits for the device, and when it is shrunk.
  explicit PoolSource(int device, size_t keep_bytes = 0, size_t keep_on_shrink_bytes = 0);
  ~PoolSource() override;

  void* take(size_t bytes) override;
  void give_back(void* chunk) noexcept override;
  void shrink() override;

  void* allocate(device::StreamRef stream, size_t bytes);  // in the stream's order; for this stream at once
  void free(device::StreamRef stream, void* address);      // taken or allocated
  size_t held_bytes() const;

 private:
  struct Pool {
    device::MemoryPool pool;
    device::Stream stream;  // with nothing on it but what take() and give_back() wait for
  };
  const Pool& pool();  // made on first use, since the driver takes its time to wake up

  const size_t keep_bytes_, keep_on_shrink_bytes_;
  std::once_flag once_;
  std::unique_ptr<const Pool> made_;
  std::atomic<const Pool*> pool_{nullptr};
};

// An application's own allocator. It has to outlive every tensor that lies in its memory.
struct External {
  void* (*allocate)(size_t bytes) = nullptr;
  void (*free)(void* address) = nullptr;
  void (*empty_cache)() = nullptr;  // may be null
  explicit operator bool() const { return allocate; }
  bool operator==(const External&) const = default;
};

class ExternalSource final : public Source {
 public:
  ExternalSource(int device, External external) : Source(device), external_(external) {}
  void* take(size_t bytes) override;
  void give_back(void* chunk) noexcept override;
  void shrink() override;

 private:
  const External external_;
};

}  // namespace encore::memory
