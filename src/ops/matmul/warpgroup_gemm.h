// Products by tiles of 64 rows, which warpgroups multiply (device/warpgroup.h).
#pragma once
#include "ops/matmul/tile_gemm.h"

namespace encore::ops {

void warpgroup_gemm(StreamRef stream, const device::Gemm& gemm, const ProductData& data, const Activation& activation,
                    TileGemmWay way);
// How many blocks can share a tile's depth.
int most_warpgroup_parts(int device);

}  // namespace encore::ops
