// Depthwise convolutions, channels last: a thread has a pack of neighbouring channels.
#pragma once
#include "device/device.h"
#include "device/settled.h"
#include "ops/nn/depthwise.h"
#include "ops/nn/resize_dims.h"

namespace encore::ops {

// False, and nothing is done, if another kernel has to: where there are no packs of 4 bytes, or too many. The
// activation is a simple one.
bool convolve_depthwise_channels_last(StreamRef stream, const ConvProblem& problem, const ConvData& data,
                                      const Epilogue& rest);

// The same by one output a thread, for any window and any number of channels for each of x.
bool convolve_depthwise_packs(StreamRef stream, const ConvProblem& problem, const ConvData& data, const Epilogue& rest);

// Whether all of these can be moved in packs of so many bytes.
bool are_packs(const ConvProblem& problem, const ConvData& data, const Epilogue& rest, int bytes);

// So many threads are there at once. Up to these, each has the fewest words; more words make for fewer instructions.
inline int64_t threads_at_once(StreamRef stream) { return 1024 * int64_t(device::multiprocessors(stream.device())); }

// Of kCount neighbours, `apart` from one another, of `size` places. What lies beyond is masked: something is read
// there, too, since a load behind a branch is waited for.
template <int kCount>
struct Neighbours {
  uint32_t bytes[kCount], masks[kCount];
  DEVICE_FN Neighbours(int first, int size, uint32_t step, int apart = 1) {
    UNROLL for (int i = 0; i < kCount; ++i) {
      const int at = int(unsigned(first) + unsigned(i) * unsigned(apart));
      bytes[i] = device::settled(uint32_t(clamped(at, size)) * step);
      masks[i] = device::settled(unsigned(at) < unsigned(size) ? ~0u : 0u);
    }
  }
};

}  // namespace encore::ops
