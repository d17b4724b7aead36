#pragma once
#include <atomic>

namespace encore::device::virtual_gpu {

// Something that happens once, and can be waited for.
class Marker {
 public:
  void set() {
    happened_.store(1, std::memory_order_release);
    happened_.notify_all();
  }
  bool is_set() const { return happened_.load(std::memory_order_acquire); }
  void wait() const { happened_.wait(0, std::memory_order_acquire); }

 private:
  std::atomic<int> happened_{0};
};

}  // namespace encore::device::virtual_gpu
