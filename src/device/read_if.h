// Reads of 16 bytes that stay where they are written.
#pragma once
#include "device/unaligned_pack.h"

namespace encore::device {

// Replaces what is there if `wanted`. Compilers leave it where it is written, and neither branch nor wait there. What
// is read once stays out of the caches that others read from again. Not as what never changes (.nc): compilers would
// read that before the kernel waits for earlier work.
template <bool kOnce>
DEVICE_FN void read_if(bool wanted, Granule& to, const void* from) {
#ifdef __CUDA_ARCH__
  uint32_t(&words)[4] = to.at;
  if constexpr (kOnce)
    asm volatile(
        "{ .reg .pred wanted; setp.ne.u32 wanted, %5, 0;\n"
        "@wanted ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
        : "l"(from), "r"(uint32_t(wanted)));
  else
    asm volatile(
        "{ .reg .pred wanted; setp.ne.u32 wanted, %5, 0;\n"
        "@wanted ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
        : "l"(from), "r"(uint32_t(wanted)));
#else
  if (wanted) to = *static_cast<const Granule*>(from);
#endif
}

}  // namespace encore::device
