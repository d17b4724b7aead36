// Persistent kernels on CUDA: cooperative launches.
#pragma once
#include "device/persistent.h"

namespace encore::device {

DEVICE_FN void StepValues::put(int64_t i, int64_t step, float value) const {
#ifdef __CUDA_ARCH__
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(slots_of(step) + i), "l"(packed(value, step)) : "memory");
#endif
}

template <int kPairs>
DEVICE_FN void StepValues::get_pairs(int64_t first, int64_t stride, int64_t end, int64_t step,
                                     Pack<float, 2>* pairs) const {
#ifdef __CUDA_ARCH__
  const uint64_t* const slots = slots_of(step);
  for (bool all = false; !all;) {  // all of them are asked for at once
    uint64_t a[kPairs], b[kPairs];
    UNROLL for (int k = 0; k < kPairs; ++k) {
      const int64_t i = first + k * stride;
      a[k] = b[k] = packed(0, step);
      if (i < end)
        asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(a[k]), "=l"(b[k]) : "l"(slots + i));
    }
    all = true;
    UNROLL for (int k = 0; k < kPairs; ++k) {
      all = all && is_of(step, a[k]) && is_of(step, b[k]);
      pairs[k] = {value_of(a[k]), value_of(b[k])};
    }
  }
#endif
}

namespace cuda {
template <class Shared, class Body>
__global__ void __launch_bounds__(max_threads<Body>())
    persistent_entry(const __grid_constant__ Body body, const int64_t steps) {
  __shared__ alignas(16) alignas(Shared) unsigned char shared[sizeof(Shared)];
  __shared__ alignas(16) unsigned char lanes[kLanesBytes];
  extern __shared__ __align__(16) unsigned char dynamic[];
  static_assert(sizeof(shared) + sizeof(lanes) <= 48 * 1024, "Shared is too large for a block");
  Shared& typed = *reinterpret_cast<Shared*>(shared);
  Block<Shared> block(typed, lanes, dynamic);
  PerThread<typename Body::Own, max_threads<Body>()> own;
  body.begin(block, static_cast<const Shared&>(typed), own);
  NO_UNROLL for (int64_t step = 0; step < steps; ++step) body(block, static_cast<const Shared&>(typed), own, step);
}

void launch_persistent(StreamRef stream, const void* entry, const Persistent& grid, void** arguments,
                       KernelName kernel);
}  // namespace cuda

template <class Shared, class Body>
void persistent_kernel(StreamRef stream, Persistent grid, const Body& body) {
  static_assert(std::is_trivially_copyable_v<Body>);
  if (grid.blocks <= 0) return;
  void* arguments[] = {const_cast<Body*>(&body), &grid.steps};
  const void* const entry = reinterpret_cast<const void*>(&cuda::persistent_entry<Shared, Body>);
  if (grid.dynamic_bytes != 0)
    cuda::allow_dynamic(stream.device(), entry, grid.dynamic_bytes, cuda::allowed_dynamic<Shared, Body>,
                        kernel_name<Body>());
  cuda::launch_persistent(stream, entry, grid, arguments, kernel_name<Body>());
}

}  // namespace encore::device
