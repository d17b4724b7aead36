#pragma once
#include <cstdint>

#include "device/annotate.h"

namespace encore::device {

// A pointer into device memory that is computed here, once: compilers would otherwise do it anew with every index that
// is added to it, by instructions for each half of the sum.
template <class T>
DEVICE_FN T* settled(T* at) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+l"(at));
  __builtin_assume(__isGlobal(at));
#endif
  return at;
}
// Likewise a number, such as one that is to be known before a wait for earlier work, or a mask: compilers see the
// condition that it was made of, and keep as predicates, which are few, what a register has.
DEVICE_FN uint32_t settled(uint32_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(value));
#endif
  return value;
}

}  // namespace encore::device
