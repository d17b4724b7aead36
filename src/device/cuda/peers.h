// Which pools the devices may read and write of one another.
#pragma once
#include <cuda_runtime.h>

namespace encore::device::cuda {

// The pool's memory is for all devices that are connected to this one, or will be.
void share_with_peers(cudaMemPool_t pool, int device);
// The pool is about to go.
void share_no_more(cudaMemPool_t pool) noexcept;

}  // namespace encore::device::cuda
