// Products by tiles of 64 rows, which warpgroups multiply (device/warpgroup.h).
#pragma once
#include "ops/matmul/tile_gemm.h"

namespace encore::ops {

void warpgroup_gemm(StreamRef stream, const device::Gemm& gemm, const ProductData& data, const Activation& activation,
                    TileGemmWay way);
// Whether they have its code at hand; what is rare they call, which takes long.
inline bool is_near_for_warpgroups(const Activation& activation) {
  using Kind = Activation::Kind;
  switch (activation.kind) {
    case Kind::none:
    case Kind::relu:
    case Kind::hard_swish:
    case Kind::silu:
    case Kind::quick_gelu:
    case Kind::gelu:
    case Kind::fast_gelu: return true;
    default: return false;
  }
}
// How many blocks can share a tile's depth.
int most_warpgroup_parts(int device);

}  // namespace encore::ops
