// Threads that work on a row together, and how a row's values are spread over them.
#pragma once
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "device/device.h"
#include "device/half.h"
#include "device/launch.h"
#include "device/transform.h"

namespace encore::ops {

// kLanes neighbouring threads, several teams a block; with kLanes 0 the whole block.
template <int kLanes>
struct Team {
  static constexpr int kMaxThreads = kLanes ? 256 : 1024;

  // What a team knows: its threads all hold the same value.
  template <class T>
  struct Same {
    T value;
    DEVICE_FN const T& operator[](int) const { return value; }
  };
  template <class T>
  using Known = std::conditional_t<kLanes != 0, device::PerThread<T, kMaxThreads>, Same<T>>;

  template <class Block>
  DEVICE_FN static int64_t index(const Block& b, int t) {
    if constexpr (kLanes == 0) return b.index();
    return b.index() * (unsigned(b.size()) / (kLanes ? kLanes : 1)) + unsigned(t) / (kLanes ? kLanes : 1);
  }
  template <class Block>
  DEVICE_FN static int size(const Block& b) {
    return kLanes ? kLanes : b.size();
  }
  DEVICE_FN static int lane(int t) { return kLanes ? int(unsigned(t) % (kLanes ? kLanes : 1)) : t; }

  template <class Block, class T, class F, class Op>
  DEVICE_FN static Known<T> reduce(Block& b, T zero, F value_of, Op op) {
    if constexpr (kLanes == 0) {
      return {b.reduce(zero, value_of, op)};
    } else {
      Known<T> out;
      b.template reduce_groups<kLanes>(out, value_of, op);
      return out;
    }
  }
};

// Calls f.template operator()<kPack>() with packs of `kWide` values, or of one if not everything is aligned.
template <int kWide, class F>
void with_packs(bool aligned, F f) {
  if (aligned) return f.template operator()<kWide>();
  if constexpr (kWide > 1) f.template operator()<1>();
}

// The functors of reductions.
struct Plus {
  template <class T>
  DEVICE_FN T operator()(const T& a, const T& b) const {
    return a + b;
  }
};
// A NaN loses to a number.
struct LargerNumber {
  DEVICE_FN float operator()(float a, float b) const { return fmaxf(a, b); }
  DEVICE_FN double operator()(double a, double b) const { return fmax(a, b); }
};

}  // namespace encore::ops
