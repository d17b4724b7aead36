#include "device/tensor_map.h"

#include <cuda.h>

#include <cstring>

#include "device/cuda/built_for.h"
#include "device/cuda/driver.h"
#include "device/error.h"

namespace encore::device {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encode() {
  static const auto function = cuda::driver_function<Encode>("cuTensorMapEncodeTiled", 12000);
  return function;
}

}  // namespace

bool has_warpgroups([[maybe_unused]] int device) {
#ifdef ENCORE_WARPGROUPS
  static cuda::AskedOnce has;
  return has(device, [&] { return cuda::capability(device) == 900 && encode(); });
#else
  return false;
#endif
}

TensorMap tensor_map(Type type, const void* at, int64_t rows, int64_t columns, int64_t row_distance, int box_rows) {
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
  const cuuint64_t sizes[] = {cuuint64_t(columns), cuuint64_t(rows)};
  const cuuint64_t distances[] = {cuuint64_t(row_distance) * size_bytes(type)};
  const cuuint32_t box[] = {kBoxColumns, cuuint32_t(box_rows)}, each[] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      encode()(&map, type == Type::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
               const_cast<void*>(at), sizes, distances, box, each, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    fail(Code::internal, "cuTensorMapEncodeTiled of ", rows, " rows of ", columns, " values, ", row_distance,
         " apart: CUDA error ", int(result));
  TensorMap made;
  std::memcpy(&made, &map, sizeof map);
  return made;
}

}  // namespace encore::device
