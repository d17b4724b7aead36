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
  store_aligned(static_cast<uint32_t*>(to), word);
#endif
}

// The same, or zeros if they are not there. 16 bytes are for what others read, too: they stay out of the
// multiprocessor's own cache.
template <int kBytes = 16>
DEVICE_FN void copy_async_or_zeros(void* to, const void* from, bool is_there) {
  static_assert(kBytes == 8 || kBytes == 16);
#ifdef __CUDA_ARCH__
  const auto shared = unsigned(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(is_there ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(from), "r"(is_there ? 8 : 0)
                 : "memory");
#else
  using Word = Pack<uint32_t, kBytes / 4>;
  const Word word = is_there ? load_aligned<kBytes / 4>(static_cast<const uint32_t*>(from)) : Word{};
  store_aligned(static_cast<uint32_t*>(to), word);
#endif
}

// What the thread has asked for is there. Others see it behind a barrier.
DEVICE_FN void wait_for_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// What the thread has asked for since it last said so is a group.
DEVICE_FN void end_group_of_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// The same of all groups but the latest kMany.
template <int kMany>
DEVICE_FN void wait_for_copies_before() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_group %0;" ::"n"(kMany) : "memory");
#endif
}

}  // namespace encore::device
