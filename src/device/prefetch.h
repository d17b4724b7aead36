#pragma once
#include "device/annotate.h"

namespace encore::device {

// Brings the line of memory there nearer, into the cache that all share. It changes nothing: kernels say it before they
// wait for earlier work, of what that still writes, too, and of addresses that turn out to be wrong guesses. Of what
// all blocks read one says it: each would be handed the same line after another one, and whoever reads it waits for
// all. A norm of 2,048 rows that each asked for its scale took eight microseconds longer.
DEVICE_FN void prefetch([[maybe_unused]] const void* at) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

}  // namespace encore::device
