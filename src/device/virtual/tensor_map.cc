#include "device/tensor_map.h"

#include "device/error.h"
#include "device/virtual/architecture.h"

namespace encore::device {

bool has_warpgroups(int) { return virtual_gpu::architecture().capability == 900; }

TensorMap tensor_map(Type type, const void* at, int64_t rows, int64_t columns, int64_t row_distance, int) {
  constexpr int64_t kAlignment = 16;
  if (reinterpret_cast<uintptr_t>(at) % kAlignment != 0 || row_distance * int64_t(size_bytes(type)) % kAlignment != 0)
    fail(Code::internal, "a tensor map's rows begin at multiples of ", kAlignment, " bytes");
  return {at, rows, columns, row_distance};
}

}  // namespace encore::device
