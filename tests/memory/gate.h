// Kernels and small things that the tests of memory and graphs share.
#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "../device/kernels.h"
#include "device/error.h"
#include "device/fault.h"
#include "device/launch.h"
#include "device/memory.h"
#include "device/stream.h"
#include "memory/arena.h"
#include "memory/streams.h"

namespace encore::test {

struct Fill {
  float* to;
  float value;
  DEVICE_FN void operator()(int64_t i) const { to[i] = value; }
};
struct Add {
  const float* from;
  float* to;
  float value;
  DEVICE_FN void operator()(int64_t i) const { to[i] = from[i] + value; }
};
struct CountOther {
  const float* from;
  float expected;
  int* wrong;
  DEVICE_FN void operator()(int64_t i) const {
    if (from[i] != expected) device::atomic_add(wrong, 1);
  }
};

inline const device::StreamRef kNoStream{};

// Holds streams up until it is opened, and waits for them in the end.
class Gate {
 public:
  ~Gate() {
    open();
    for (device::StreamRef stream : held_) stream.synchronize();
  }
  void hold(device::StreamRef stream) {
    gate_.close(stream);
    held_.push_back(stream);
  }
  void open() { gate_.open(); }

 private:
  device::tests::Gate gate_;
  std::vector<device::StreamRef> held_;
};

// A stream that memory knows of.
class EnlistedStream {
 public:
  EnlistedStream() : stream_(0) { memory::enlist(stream_); }
  ~EnlistedStream() { memory::delist(stream_); }
  operator device::StreamRef() const { return stream_; }
  const device::StreamRef* operator->() const { return &(ref_ = stream_.ref()); }

 private:
  device::Stream stream_;
  mutable device::StreamRef ref_;
};

// Pinned, so that kernels can count in it.
class Counter {
 public:
  Counter() : value_(static_cast<int*>(device::allocate_pinned(sizeof(int)))) { *value_ = 0; }
  ~Counter() { device::free_pinned(value_); }
  int* get() { return value_; }
  int operator*() const { return std::atomic_ref<int>(*value_).load(); }

 private:
  int* value_;
};

inline std::vector<float> read(device::StreamRef stream, const void* from, size_t count) {
  std::vector<float> values(count);
  device::copy(stream, values.data(), from, count * sizeof(float));
  stream.synchronize();
  return values;
}

// The message of the Error that `f` throws, or a failure if it throws none.
template <class F>
std::string message_of(F f, Code code) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_STREQ(name(e.code()), name(code)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace encore::test
