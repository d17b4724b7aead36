// Addresses of device memory. Those which the host holds are names: nothing is there, and touching it is a fault, as on
// a machine with a real GPU. The memory lies a fixed distance above, and tasks are given the addresses of there.
#pragma once
#include <cstddef>
#include <type_traits>

namespace encore::device::virtual_gpu {

// Addresses, aligned to 256 bytes, of memory that nothing has written since it was put back; null if there are none
// left. What is next to them is nobody's. Under ASan the memory is poisoned.
void* carve(size_t bytes);
// Under ASan the memory has been poisoned. It is not carved again at once.
void put_back(void* address, size_t bytes);

// Where a task finds what the host calls `address`. Other memory than the device's is at its own address.
void* reached(const void* address);

// The same for a pointer that a kernel follows: it leads nowhere if it is one to pageable memory.
void* followed(const void* address);
void follow_all(void* functor, size_t bytes);

// A functor as its kernel gets it. CUDA copies functors byte by byte, too.
template <class F>
F as_launched(F functor) {
  static_assert(std::is_trivially_copyable_v<F>, "a kernel's functor is copied to the device");
  if constexpr (alignof(F) >= alignof(void*)) follow_all(&functor, sizeof functor);
  return functor;
}

}  // namespace encore::device::virtual_gpu
