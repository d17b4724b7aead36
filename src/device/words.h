// Packs as words, which nvcc leaves whole. Short values it takes apart as soon as they are there, and so waits for some
// packs before it asks for others; and of what store_pack() writes it at times makes a store for each of them.
#pragma once
#include <bit>

#include "device/transform.h"

namespace encore::device {

template <class T, int kCount>
using WordsOf = Pack<uint32_t, int(sizeof(Pack<T, kCount>) / 4)>;

template <class T, int kCount>
DEVICE_FN WordsOf<T, kCount> words_of(const Pack<T, kCount>& pack) {
  return std::bit_cast<WordsOf<T, kCount>>(pack);
}
template <class T, int kWords>
DEVICE_FN Pack<T, kWords * 4 / int(sizeof(T))> pack_of(const Pack<uint32_t, kWords>& words) {
  return std::bit_cast<Pack<T, kWords * 4 / int(sizeof(T))>>(words);
}

// From an aligned address.
template <int kCount, class T>
DEVICE_FN WordsOf<T, kCount> load_words(const T* from) {
  return load_aligned<int(sizeof(Pack<T, kCount>) / 4)>(reinterpret_cast<const uint32_t*>(from));
}

// To an aligned address in global memory.
template <class T, int kCount>
DEVICE_FN void store_whole(T* to, const Pack<T, kCount>& pack) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(pack) == 16) {
    const auto words = words_of(pack);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(words.at[0]),
                 "r"(words.at[1]), "r"(words.at[2]), "r"(words.at[3])
                 : "memory");
    return;
  }
#endif
  store_pack(to, pack, true);
}

}  // namespace encore::device
