// What this library was compiled for, which nvcc alone knows, and what devices are.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

#include "device/architectures.h"
#include "device/device.h"

namespace encore::device::cuda {

const Architectures& built_for();
// 900 is 9.0; zero if the device can't say.
int capability(int device);

// Whether something is so of a device, for which ask() is called once each.
class AskedOnce {
 public:
  template <class F>
  bool operator()(int device, F ask) {
    std::atomic<int8_t>& known = answers_[size_t(device)];
    if (const int8_t answer = known.load(std::memory_order_relaxed)) return answer == kYes;
    const bool is_so = ask();
    known.store(is_so ? kYes : kNo, std::memory_order_relaxed);
    return is_so;
  }

 private:
  static constexpr int8_t kNo = 1, kYes = 2;  // zero: not asked yet
  std::array<std::atomic<int8_t>, kMaxDevices> answers_{};
};

}  // namespace encore::device::cuda
