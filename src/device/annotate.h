// DEVICE_FN: runs inside a kernel. CALLED_FN: does so, apart from what calls it, if it is long and seldom needed.
// BOTH_FN: runs inside a kernel and on the host. With the virtual GPU all are plain functions.
#pragma once
#ifdef __CUDACC__
#define DEVICE_FN __device__ __forceinline__
#define CALLED_FN __device__ __noinline__
#define BOTH_FN __host__ __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#else
#define DEVICE_FN inline
#define CALLED_FN inline
#define BOTH_FN inline
#define UNROLL
#define NO_UNROLL
#endif
