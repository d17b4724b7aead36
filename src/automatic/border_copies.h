// Copies of many tensors at once.
#pragma once
#include <cstddef>
#include <span>

#include "device/stream.h"

namespace encore::automatic {

struct BorderCopy {
  const void* from;
  void* to;
  size_t bytes;
};
// In few launches, whatever their number. None may overlap another.
void copy_all(device::StreamRef stream, std::span<const BorderCopy> copies);

}  // namespace encore::automatic
