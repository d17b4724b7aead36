#include "device/cuda/stopwatch.h"

#include <cstdint>

namespace encore::device::cuda {
namespace {

__device__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
__global__ void wait_for(uint64_t duration) {
  const uint64_t end = nanoseconds() + duration;
  while (nanoseconds() < end) __nanosleep(500);
}

}  // namespace

void hold(cudaStream_t stream, double microseconds) {
  uint64_t duration = uint64_t(microseconds * 1e3);
  void* arguments[] = {&duration};
  check(cudaLaunchKernel(reinterpret_cast<const void*>(&wait_for), dim3(1), dim3(1), arguments, 0, stream),
        "cudaLaunchKernel of a wait");
}

}  // namespace encore::device::cuda
