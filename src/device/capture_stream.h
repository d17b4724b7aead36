// A stream to capture on.
#pragma once
#include <utility>

#include "device/stream.h"

namespace encore::device {

// A capture on it survives a wait for the whole device in another thread (cudaDeviceSynchronize()), as far as the
// driver can have such streams. What is captured runs as if it had been captured on any other.
class CaptureStream {
 public:
  CaptureStream() = default;
  explicit CaptureStream(int device);
  ~CaptureStream();
  CaptureStream(CaptureStream&& other) noexcept : ref_(std::exchange(other.ref_, {})) {}
  CaptureStream& operator=(CaptureStream&& other) noexcept {
    std::swap(ref_, other.ref_);
    return *this;
  }
  explicit operator bool() const { return bool(ref_); }
  operator StreamRef() const { return ref_; }

 private:
  StreamRef ref_;
};

// Whether it can. Elsewhere such a wait breaks the capture, and has been seen to end the process inside the driver.
bool captures_survive_device_waits(int device);

}  // namespace encore::device
