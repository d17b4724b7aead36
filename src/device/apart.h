// Packs of one thread that lie alike.
#pragma once
#include <cstdint>

#include "device/device.h"
#include "device/stream.h"

namespace encore::device {

// How far apart, of `packs` that are alike after each `period`, a thread takes about `most` of them: a multiple of the
// period, or all packs where threads would become too few.
inline int64_t packs_apart(StreamRef stream, int64_t packs, int64_t period, int most) {
  const int64_t apart = ((packs + most - 1) / most + period - 1) / period * period;
  return apart < 512 * int64_t(multiprocessors(stream.device())) || apart > packs ? packs : apart;
}

}  // namespace encore::device
