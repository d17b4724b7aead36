// What benches time: work on halves or floats in device memory, as a captured graph replays it one piece behind the
// other.
#pragma once
#include <algorithm>
#include <random>
#include <vector>

#include "device/device.h"
#include "device/graph.h"
#include "device/half.h"
#include "device/memory.h"

namespace encore::bench {

template <class T = device::Half>
class Memory {
 public:
  explicit Memory(int64_t values) : bytes_(size_t(values) * sizeof(T)), at_(device::allocate(0, bytes_)) {}
  ~Memory() { device::free(0, at_); }
  Memory(const Memory&) = delete;
  void* at() const { return at_; }
  void set(device::StreamRef stream, const std::vector<T>& values) const {
    device::copy(stream, at_, values.data(), values.size() * sizeof(T));
    stream.synchronize();
  }
  std::vector<T> values(device::StreamRef stream) const {
    std::vector<T> got(bytes_ / sizeof(T));
    device::copy(stream, got.data(), at_, bytes_);
    stream.synchronize();
    return got;
  }

 private:
  size_t bytes_;
  void* at_;
};

template <class T = device::Half>
std::vector<T> random_values(int64_t count, float scale) {
  static std::mt19937 engine(1);
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) value = T((float(engine() >> 8) / float(1 << 23) - 1) * scale);
  return values;
}

struct Captured {
  double seconds;
  device::Event start{0, device::Timing::on}, stop{0, device::Timing::on};

  // Microseconds of one of the pieces of work that enqueue(i) enqueues, of which a graph has `times`.
  template <class F>
  double us(device::StreamRef stream, int times, F enqueue) {
    stream.synchronize();
    begin_capture(stream, device::CaptureMode::thread_local_);
    for (int i = 0; i < times; ++i) enqueue(i);
    const auto exec = end_capture(stream).instantiate();
    double best = 1e9, spent = 0;
    for (int round = 0; round < 4 || (spent < seconds * 1e6 && round < 1000); ++round) {
      constexpr int kReplays = 4;
      start.record(stream);
      for (int i = 0; i < kReplays; ++i) exec.launch(stream);
      stop.record(stream);
      stop.synchronize();
      const double us = *device::elapsed_us(start, stop);
      spent += us;
      best = std::min(best, us / (kReplays * times));
    }
    return best;
  }
};

}  // namespace encore::bench
