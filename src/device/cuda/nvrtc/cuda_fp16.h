// The conversions alone, as CUDA's header has them.
#pragma once
__device__ __forceinline__ unsigned short __float2half_rn(float x) {
  unsigned short half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return half;
}
__device__ __forceinline__ float __half2float(unsigned short half) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
  return x;
}
__device__ __forceinline__ unsigned short __half_as_ushort(unsigned short half) { return half; }
__device__ __forceinline__ unsigned short __ushort_as_half(unsigned short half) { return half; }
