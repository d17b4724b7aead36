// Warp::mma() of floats (warp.h) in two steps, so that what many products read is rounded to TF32 once.
#pragma once
#include "device/unaligned_pack.h"
#include "device/warp.h"

namespace encore::device {

// The bits of a float for mma_tf32(), which cuts off the last 13 of them.
DEVICE_FN uint32_t as_tf32(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return isfinite(__uint_as_float(bits)) ? bits + 0x1000 : bits;
#else
  return bits;  // mma() rounds them
#endif
}
DEVICE_FN Granule as_tf32(Granule granule) {
  UNROLL for (uint32_t& bits : granule.at) bits = as_tf32(bits);
  return granule;
}

template <class OfC, class OfA, class OfB>
DEVICE_FN void mma_tf32(const Warp& warp, OfC c_of, OfA a_of, OfB b_of) {
#ifdef __CUDA_ARCH__
  warp.apart([&](int lane) {
    const FragmentA a = a_of(lane);
    const FragmentB b = b_of(lane);
    FragmentC& c = c_of(lane);
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
  });
#else
  warp.mma<float>(c_of, a_of, b_of);
#endif
}

}  // namespace encore::device
