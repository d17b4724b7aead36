// What quantizing to 8 bits and back makes of values, in one kernel.
#include <cmath>

#include "device/launch.h"
#include "ops/recurrent/recurrence.h"

namespace encore::ops {
namespace {

struct RoundToBytes {
  static constexpr int kThreads = 1024, kMaxThreads = kThreads;
  struct Extremes {
    float low, high;
  };
  struct Join {
    DEVICE_FN Extremes operator()(Extremes a, Extremes b) const {
      return {b.low < a.low ? b.low : a.low, b.high > a.high ? b.high : a.high};
    }
  };
  const float* values;
  float* rounded;
  int64_t count;
  DEVICE_FN void operator()(device::Block<device::NoShared>& b, const device::NoShared&) const {
    const float* const from = values + b.index() * count;
    float* const to = rounded + b.index() * count;
    const Extremes all = b.reduce(
        Extremes{0, 0},
        [&](int t) {
          Extremes mine{0, 0};
          for (int64_t i = t; i < count; i += kThreads) mine = Join{}(mine, {from[i], from[i]});
          return mine;
        },
        Join{});
    const float scale = all.high == all.low ? 1.f : (all.high - all.low) / 255.f;
    const float zero = within_a_byte(rint(0.f - all.low / scale));
    b.threads([&](int t, device::NoShared&) {
      for (int64_t i = t; i < count; i += kThreads)
        to[i] = (within_a_byte(rint(from[i] / scale) + zero) - zero) * scale;
    });
  }

 private:
  DEVICE_FN static float within_a_byte(float value) { return value > 0.f ? (value < 255.f ? value : 255.f) : 0.f; }
};

}  // namespace

void round_to_bytes(StreamRef stream, const float* values, int64_t groups, int64_t count, float* rounded) {
  if (count == 0) return;
  device::block_kernel<device::NoShared>(stream, {groups, RoundToBytes::kThreads},
                                         RoundToBytes{values, rounded, count});
}

}  // namespace encore::ops
