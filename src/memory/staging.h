// A small ring of pinned buffers through which pageable host memory travels, so that the device side stays
// asynchronous.
#pragma once
#include <cstddef>
#include <memory>
#include <span>

#include "device/copy_many.h"
#include "device/stream.h"

namespace encore::memory {

class Staging {
 public:
  static constexpr size_t kSmall = size_t(128) << 10;  // bytes of a tensor, at most

  explicit Staging(int device);
  ~Staging();
  // Copies from pageable memory; returns when `from` has been read, not when the copy has arrived.
  void upload(device::StreamRef stream, void* to, const void* from, size_t bytes);
  // Small ones, none of them empty, by one kernel or few.
  void upload(device::StreamRef stream, std::span<const device::Copy> copies);
  // Copies to pageable memory; returns when `to` has been written.
  void download(device::StreamRef stream, void* to, const void* from, size_t bytes);
  // Several small ones, for which the host waits once. Whoever has some under way finishes them before other copies.
  class Downloads {
   public:
    Downloads();
    ~Downloads();  // what has not been finished is not written
    Downloads(const Downloads&) = delete;
    // `to` is written by the end of finish(), if not before.
    void add(Staging& staging, device::StreamRef stream, void* to, const void* from, size_t bytes);
    // Small ones, none of them empty, by one kernel or few.
    void add(Staging& staging, device::StreamRef stream, std::span<const device::Copy> copies);
    void finish();

   private:
    struct Batch;
    bool has_room(const Staging& staging, device::StreamRef stream, size_t bytes) const;
    std::unique_ptr<Batch> batch_;
  };
  size_t held_bytes() const;  // pinned

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace encore::memory
