// Copies from global to shared memory, for which a thread only waits once it says so.
#pragma once
#include "device/transform.h"

namespace encore::device {

// 4, 8 or 16 bytes, at addresses that are multiples of that.
template <int kBytes>
DEVICE_FN void copy_async(void* to, const void* from) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(unsigned(__cvta_generic_to_shared(to))), "l"(from),
               "n"(kBytes)
               : "memory");
#else
  using Word = Pack<uint32_t, kBytes / 4>;
  const Word word = load_aligned<kBytes / 4>(static_cast<const uint32_t*>(from));
  std::memcpy(to, &word, sizeof word);
#endif
}

// What the thread has asked for is there. Others see it behind a barrier.
DEVICE_FN void wait_for_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

}  // namespace encore::device
