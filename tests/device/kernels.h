// Small kernels that several tests launch.
#pragma once
#include <atomic>
#include <cstdlib>

#include "device/launch.h"
#include "on_device.h"

namespace encore::device::tests {

struct AddTo {
  int* x;
  int value;
  DEVICE_FN void operator()(int64_t i) const { x[i] += value; }
};
struct MultiplyBy {
  int* x;
  int value;
  DEVICE_FN void operator()(int64_t i) const { x[i] *= value; }
};
struct Set {
  int* x;
  int value;
  DEVICE_FN void operator()(int64_t i) const { x[i] = value; }
};
struct CopyTo {
  int* to;
  const int* from;
  DEVICE_FN void operator()(int64_t i) const { to[i] = from[i]; }
};
// y = x + value, 64 elements a block.
struct AddBlocks {
  const int* x;
  int* y;
  int value;
  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    b.threads([&](int t, NoShared&) { y[b.index() * 64 + t] = x[b.index() * 64 + t] + value; });
  }
};
struct Nothing {
  DEVICE_FN void operator()(int64_t) const {}
};

// CUDA may wait for running kernels when it loads one late, and with a gate closed that would be for ever.
inline const int kKernelsAreLoadedEarly = setenv("CUDA_MODULE_LOADING", "EAGER", 0);

// Keeps a stream busy until the host opens the gate.
struct WaitForGate {
  int* open;
  DEVICE_FN void operator()(int64_t) const {
    while (!is_open()) {
    }
  }
  // Only reads: across PCIe an atomic of the GPU might overwrite what the host stores.
  DEVICE_FN bool is_open() const {
#ifdef __CUDA_ARCH__
    return *static_cast<volatile int*>(open);
#else
    return std::atomic_ref<int>(*open).load();
#endif
  }
};
class Gate {
 public:
  Gate() : open_(1, 0) {}
  ~Gate() { open(); }
  void close(StreamRef stream) { for_each_index(stream, 1, WaitForGate{open_.data()}); }
  void open() { std::atomic_ref<int>(open_[0]).store(1); }

 private:
  PinnedArray<int> open_;
};

}  // namespace encore::device::tests
