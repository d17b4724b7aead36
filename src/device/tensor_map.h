// Matrices as the copy engine (TMA) knows them, which brings boxes of them to shared memory, where warpgroups multiply
// them (device/warpgroup.h).
#pragma once
#include <cstdint>

#include "device/half.h"
#include "device/type.h"

namespace encore::device {

// Whether the device does that, as those of compute capability 9.0 do, and this library has the code.
bool has_warpgroups(int device);

struct TensorMap;
inline constexpr int kBoxColumns = 64;
// Of values of 16 bits; rows begin at multiples of 16 bytes. A box has so many rows, and zeros beyond the matrix.
TensorMap tensor_map(Type type, const void* at, int64_t rows, int64_t columns, int64_t row_distance, int box_rows);

}  // namespace encore::device

#ifdef ENCORE_CUDA
#include "device/cuda/tensor_map.h"
#else
#include "device/virtual/tensor_map.h"
#endif
