// Copies between host and device memory: on the stream that computes, or beside it.
#pragma once
#include "device/stream.h"
#include "memory/staging.h"

namespace encore::plugin {

// Copies come after what is on the given stream, and what follows there comes after them, wherever they run. Pageable
// memory may be reused (upload) or read (download) when these return, pinned memory when the stream has come so far.
class HostCopies {
 public:
  // `apart`: on a stream of their own. It waits for the given one, whose earlier work may still use a copy's target,
  // and is waited for, because a copy's memory may be freed, and given to others, right after.
  HostCopies(int device, bool apart);
  void upload(device::StreamRef stream, void* to, const void* from, size_t bytes);
  // Of pageable memory, small ones at once.
  void upload(device::StreamRef stream, std::span<const device::Copy> copies);
  void download(device::StreamRef stream, void* to, const void* from, size_t bytes);
  // Pageable memory may be read when `together` is finished.
  void download(device::StreamRef stream, void* to, const void* from, size_t bytes,
                memory::Staging::Downloads& together);
  void download(device::StreamRef stream, std::span<const device::Copy> copies, memory::Staging::Downloads& together);

  size_t held_bytes() const { return staging_.held_bytes(); }  // pinned

 private:
  template <class Copy>
  void run(device::StreamRef stream, const Copy& copy);

  device::Stream own_;
  memory::Staging staging_;
};

}  // namespace encore::plugin
