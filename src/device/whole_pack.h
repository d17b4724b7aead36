// A pack that is written at once. Of what store_pack() writes nvcc at times makes a store for each of its values.
#pragma once
#include <bit>

#include "device/transform.h"

namespace encore::device {

// To an aligned address in global memory.
template <class T, int kCount>
DEVICE_FN void store_whole(T* to, const Pack<T, kCount>& pack) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(pack) == 16) {
    const auto words = std::bit_cast<Pack<uint32_t, 4>>(pack);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(words.at[0]),
                 "r"(words.at[1]), "r"(words.at[2]), "r"(words.at[3])
                 : "memory");
    return;
  }
#endif
  store_pack(to, pack, true);
}

}  // namespace encore::device
