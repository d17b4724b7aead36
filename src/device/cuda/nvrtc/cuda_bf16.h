// The conversion alone, as CUDA's header has it.
#pragma once
__device__ __forceinline__ unsigned short __float2bfloat16_rn(float x) {
  unsigned short half;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return half;
}
__device__ __forceinline__ unsigned short __bfloat16_as_ushort(unsigned short half) { return half; }
