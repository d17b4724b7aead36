#pragma once
#include <cstdint>

#include "device/annotate.h"

namespace encore::device {

// Brings the line of memory there nearer, into the cache that all share. It changes nothing: kernels say it before they
// wait for earlier work, of what that still writes, too, and of addresses that turn out to be wrong guesses.
DEVICE_FN void prefetch([[maybe_unused]] const void* at) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

// The same of so many bytes, at once on Hopper and not at all before it: a multiple of 16, as the address is.
DEVICE_FN void prefetch([[maybe_unused]] const void* at, [[maybe_unused]] uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "r"(bytes));
#endif
}

}  // namespace encore::device
