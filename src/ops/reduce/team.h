// Threads that work on a row together, and how a row's values are spread over them.
#pragma once
#include <algorithm>
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
    return b.index() * (b.size() / (kLanes ? kLanes : 1)) + t / (kLanes ? kLanes : 1);
  }
  template <class Block>
  DEVICE_FN static int size(const Block& b) {
    return kLanes ? kLanes : b.size();
  }
  DEVICE_FN static int lane(int t) { return kLanes ? t % (kLanes ? kLanes : 1) : t; }

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

// A row of `width` values, a multiple of kPack, dealt to a team in packs. Each thread keeps kKeep packs in registers;
// with kKeep 0 it keeps none and goes through memory as often as asked.
template <int kPack, int kKeep>
struct Deal {
  template <class T>
  struct Kept {
    T at[kKeep ? kKeep : 1][kPack];
  };
  // f(pack of this thread, its first value) for each pack that is `lane`'s.
  template <class F>
  DEVICE_FN static void each(int64_t width, int lane, int lanes, F f) {
    if constexpr (kKeep != 0) {
      UNROLL for (int k = 0; k < kKeep; ++k) {
        const int first = (lane + k * lanes) * kPack;
        if (first < int(width)) f(k, first);
      }
    } else {
      for (int64_t first = int64_t(lane) * kPack; first < width; first += int64_t(lanes) * kPack) f(0, first);
    }
  }
};

// Chooses a team and a deal for rows of `width` values: calls f.template operator()<kLanes, kKeep>(grid). With kFew
// there are fewer to choose from: for combinations of types that are rare; and one, if packs can't be wide either.
template <int kPack, bool kFew, class F>
void spread_rows(device::StreamRef stream, int64_t rows, int64_t width, F f) {
  const int64_t multiprocessors = device::multiprocessors(stream.device());
  const int64_t busy = multiprocessors * 4;  // rows that fill a GPU even if each has but one warp
  const int64_t packs = width / kPack;
  // The fewer blocks, the smaller, so that all multiprocessors get some.
  const auto teams = [&](int lanes) -> device::Blocks {
    int threads = 256;
    while (threads > 64 && (rows * lanes + threads - 1) / threads < 2 * multiprocessors) threads /= 2;
    return {(rows * lanes + threads - 1) / threads, threads};
  };
  const auto blocks = [&](int keep) -> device::Blocks {
    const int64_t threads = std::min<int64_t>((packs + keep - 1) / keep, 1024);
    return {rows, int((threads + 31) / 32 * 32)};
  };
  constexpr int kMost = std::min(8, 32 / kPack), kSome = kMost / 2;
  if constexpr (kPack > 1 && !kFew) {
    if (packs <= 16) return f.template operator()<8, 2>(teams(8));
    if (packs <= 32) return f.template operator()<32, 1>(teams(32));
    if (rows >= busy && packs <= 32 * kSome) return f.template operator()<32, kSome>(teams(32));
    if (rows >= busy && packs <= 32 * kMost) return f.template operator()<32, kMost>(teams(32));
    if (packs <= 256) return f.template operator()<0, 1>(blocks(1));
  } else if constexpr (kPack > 1 || !kFew) {
    if (packs <= 32 * kMost) return f.template operator()<32, kMost>(teams(32));
  }
  if constexpr (kPack > 1 || !kFew)
    if (packs <= 1024 * kSome) return f.template operator()<0, kSome>(blocks(kSome));
  return f.template operator()<0, 0>(blocks(1));
}

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
// fmax and fmin pass over NaN.
struct Larger {
  DEVICE_FN float operator()(float a, float b) const { return fmaxf(a, b); }
  DEVICE_FN double operator()(double a, double b) const { return fmax(a, b); }
};

}  // namespace encore::ops
