// Atomic changes of values of any type in device memory, beside the additions of device/launch.h.
#pragma once
#include <bit>
#include <cstdint>
#include <type_traits>

#include "device/annotate.h"
#ifndef __CUDACC__
#include <atomic>
#endif

namespace encore::device {

// *to = f(*to) for a T of 1, 2, 4 or 8 bytes. f may be called more than once.
template <class T, class F>
DEVICE_FN void atomic_update(T* to, F f) {
#ifdef __CUDACC__
  if constexpr (sizeof(T) == 1) {  // in the word that holds the byte: there is no exchange of less
    const uintptr_t address = reinterpret_cast<uintptr_t>(to);
    auto* const word = reinterpret_cast<unsigned*>(address & ~uintptr_t(3));
    const int shift = 8 * int(address & 3);
    for (unsigned seen = *static_cast<volatile unsigned*>(word);;) {
      const unsigned made = std::bit_cast<uint8_t>(f(std::bit_cast<T>(uint8_t(seen >> shift))));
      const unsigned before = atomicCAS(word, seen, (seen & ~(0xffu << shift)) | made << shift);
      if (before == seen) return;
      seen = before;
    }
  } else {
    using Word = std::conditional_t<sizeof(T) == 2, unsigned short,
                                    std::conditional_t<sizeof(T) == 4, unsigned, unsigned long long>>;
    auto* const word = reinterpret_cast<Word*>(to);
    for (Word seen = *static_cast<volatile Word*>(word);;) {
      const Word made = std::bit_cast<Word>(f(std::bit_cast<T>(seen)));
      if (made == seen) return;
      const Word before = atomicCAS(word, seen, made);
      if (before == seen) return;
      seen = before;
    }
  }
#else
  std::atomic_ref<T> cell(*to);
  T seen = cell.load(std::memory_order_relaxed);
  while (!cell.compare_exchange_weak(seen, f(seen), std::memory_order_relaxed)) {
  }
#endif
}

}  // namespace encore::device
