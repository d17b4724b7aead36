// Copies to pinned memory that the device is to read next.
#pragma once
#include <cstddef>
#include <cstring>
#if defined(__SSE2__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which don't see such writes
#include <emmintrin.h>

namespace encore::memory {

// As memcpy(), but the bytes go to memory and not to this processor's caches, out of which the device would have to
// fetch them. `to` is aligned to 16 bytes.
inline void copy_past_caches(void* to, const void* from, size_t bytes) {
  auto* target = static_cast<__m128i*>(to);
  auto* source = static_cast<const __m128i*>(from);
  constexpr size_t kLine = 4;  // 64 bytes, which are written as one
  for (; bytes >= kLine * sizeof *target; bytes -= kLine * sizeof *target, target += kLine, source += kLine) {
    __m128i line[kLine];
    for (size_t i = 0; i < kLine; ++i) line[i] = _mm_loadu_si128(source + i);
    for (size_t i = 0; i < kLine; ++i) _mm_stream_si128(target + i, line[i]);
  }
  _mm_sfence();
  std::memcpy(target, source, bytes);
}

}  // namespace encore::memory
#else

namespace encore::memory {
inline void copy_past_caches(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
}  // namespace encore::memory
#endif
