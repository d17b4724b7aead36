// Lists of an op's own on the device.
#pragma once
#include <vector>

#include "device/memory.h"
#include "ops/op.h"

namespace encore::ops {

// Copies a list to the device, for as long as the op lives; the list has to live until the stream is through.
template <class T>
const T* keep_list(Prepack& prepack, const std::vector<T>& list) {
  if (list.empty()) return nullptr;
  void* const kept = prepack.keep(list.size() * sizeof(T));
  device::copy(prepack.stream(), kept, list.data(), list.size() * sizeof(T));
  return static_cast<const T*>(kept);
}

}  // namespace encore::ops
