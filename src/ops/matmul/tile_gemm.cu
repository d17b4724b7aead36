#include <type_traits>

#include "device/device.h"
#include "device/error.h"
#include "device/tensor_map.h"
#include "ops/dispatch.h"
#include "ops/matmul/tile_gemm_kernel.h"
#include "ops/matmul/warpgroup_gemm.h"

namespace encore::ops {

using device::BFloat16;
using device::Half;

TileRoom tile_room(int device) {
  TileRoom room{device::multiprocessors(device), kMostTileParts, device::has_warpgroups(device)};
  for (int shape = 0; shape < int(kFirstOfWarpgroups); ++shape)
    for_shape(TileShape(shape), [&]<class Warps> {
      using Kernel = TileGemm<Half, true, MatrixRows<Half>, Warps>;
      room.most_parts = std::min(room.most_parts, device::most_in_cluster<typename Kernel::Shared, Kernel>(device));
    });
  if (room.warpgroups) room.most_parts = std::min(room.most_parts, most_warpgroup_parts(device));
  return room;
}

void tile_gemm(StreamRef stream, const device::Gemm& g, const ProductData& data, const Activation& activation,
               TileGemmWay way) {
  check(g);
  if (!is_tile_gemm(g, data, way))
    fail(Code::internal, describe(g), ": not a product by tiles, the depth in ", way.parts);
  if (way.shape >= kFirstOfWarpgroups) return warpgroup_gemm(stream, g, data, activation, way);
  dispatch(TypeList<Half, BFloat16, float>{}, g.type, [&]<class T>() {
    const MatrixRows<T> rows{static_cast<const T*>(data.a), g.lda};
    const TileProduct<T> p = tile_product<T>(g, data, activation);
    if constexpr (!std::is_same_v<T, float>)
      if (!g.transpose_b) return launch_tile_gemm<T, false>(stream, p, rows, way);
    launch_tile_gemm<T, true>(stream, p, rows, way);
  });
}

}  // namespace encore::ops
