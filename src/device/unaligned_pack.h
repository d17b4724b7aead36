// Values at any address, read in the aligned granules of 16 bytes that they lie in.
#pragma once
#include <cstring>
#include <type_traits>

#include "device/transform.h"

namespace encore::device {

using Granule = Pack<uint32_t, 4>;

// The granule at `at`, of which the bytes in [from, to) are wanted. The others may be anyone's, but can be read: a
// GPU's memory ends nowhere within a granule. The virtual GPU leaves them alone.
DEVICE_FN Granule load_granule(const char* at, [[maybe_unused]] const char* from, [[maybe_unused]] const char* to) {
#ifdef __CUDACC__
  return *reinterpret_cast<const Granule*>(at);
#else
  virtual_gpu::check_alignment(is_pack_aligned<sizeof(Granule)>(at));
  Granule granule;
  std::memset(&granule, 0xff, sizeof granule);
  const char *begin = from > at ? from : at, *end = to < at + sizeof granule ? to : at + sizeof granule;
  std::memcpy(reinterpret_cast<char*>(&granule) + (begin - at), begin, size_t(end - begin));
  return granule;
#endif
}

// An aligned pack, of which the values in [from, to) are wanted, at least one: likewise.
template <int kCount, class T>
DEVICE_FN Pack<T, kCount> load_pack_within(const T* at, [[maybe_unused]] const T* from, [[maybe_unused]] const T* to) {
  static_assert(sizeof(Pack<T, kCount>) <= sizeof(Granule));
#ifdef __CUDACC__
  return *reinterpret_cast<const Pack<T, kCount>*>(at);
#else
  virtual_gpu::check_alignment(is_pack_aligned<kCount>(at));
  Pack<T, kCount> pack;
  // NaN, and no number that could be an index.
  std::memset(&pack, std::is_same_v<T, bool> ? 0 : std::is_integral_v<T> ? 0x81 : 0xff, sizeof pack);
  const T *begin = from > at ? from : at, *end = to < at + kCount ? to : at + kCount;
  std::memcpy(pack.at + (begin - at), begin, size_t(end - begin) * sizeof(T));
  return pack;
#endif
}

// A pack at any address on its way from memory: pack() waits for them, so ask for all that are needed before.
template <class T>
struct UnalignedPack {
  static constexpr int kCount = pack_size<T>();
  Granule low = {}, high = {};
  unsigned skipped = 0;  // bytes of `low`

  UnalignedPack() = default;
  // The first `count` from there, or none.
  DEVICE_FN UnalignedPack(const T* from, int count) {
    static_assert(16 % sizeof(T) == 0);
    const char* const begin = reinterpret_cast<const char*>(from);
    const char* const end = begin + count * int(sizeof(T));
    if constexpr (sizeof(T) < 16) skipped = unsigned(reinterpret_cast<uintptr_t>(begin) % sizeof(Granule));
    const char* const at = begin - skipped;
    if (count > 0) low = load_granule(at, begin, end);
    if constexpr (sizeof(T) < 16) {
      if (count > 0 && skipped + unsigned(count) * sizeof(T) > sizeof(Granule))
        high = load_granule(at + sizeof(Granule), begin, end);
    }
  }
  DEVICE_FN Pack<T, kCount> pack() const {
    uint32_t words[8];
    UNROLL for (int i = 0; i < 4; ++i) {
      words[i] = low.at[i];
      words[4 + i] = high.at[i];
    }
    if constexpr (sizeof(T) < 16) {
      UNROLL for (int i = 0; i < 6; ++i) words[i] = skipped & 8 ? words[i + 2] : words[i];
    }
    if constexpr (sizeof(T) < 8) {
      UNROLL for (int i = 0; i < 5; ++i) words[i] = skipped & 4 ? words[i + 1] : words[i];
    }
    if constexpr (sizeof(T) < 4) {
      UNROLL for (int i = 0; i < 4; ++i) words[i] =
          uint32_t((uint64_t(words[i + 1]) << 32 | words[i]) >> (skipped % 4 * 8));
    }
    Pack<T, kCount> pack;
    std::memcpy(&pack, words, sizeof pack);
    return pack;
  }
};

template <class T>
DEVICE_FN Pack<T, pack_size<T>()> load_unaligned_pack(const T* from, int count = pack_size<T>()) {
  return UnalignedPack<T>(from, count).pack();
}

}  // namespace encore::device
