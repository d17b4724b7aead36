#include <type_traits>

#include "device/device.h"
#include "device/error.h"
#include "ops/dispatch.h"
#include "ops/matmul/tile_gemm_kernel.h"

namespace encore::ops {

using device::BFloat16;
using device::Half;

TileRoom tile_room(int device) {
  TileRoom room{device::multiprocessors(device), kMostTileParts};
  for (int shape = 0; shape < kTileShapes; ++shape)
    for_shape(TileShape(shape), [&]<class Warps> {
      using Kernel = TileGemm<Half, true, MatrixRows<Half>, Warps>;
      room.most_parts = std::min(room.most_parts, device::most_in_cluster<typename Kernel::Shared, Kernel>(device));
    });
  return room;
}

void tile_gemm(StreamRef stream, const device::Gemm& g, const ProductData& data, const Activation& activation,
               TileGemmWay way) {
  check(g);
  if (!is_tile_gemm(g, data, way))
    fail(Code::internal, describe(g), ": not a product by tiles, the depth in ", way.parts);
  dispatch(TypeList<Half, BFloat16, float>{}, g.type, [&]<class T>() {
    const auto* const c = static_cast<const T*>(data.c);
    const MatrixRows<T> rows{static_cast<const T*>(data.a), g.lda};
    const TileProduct<T> p{static_cast<const T*>(data.b),
                           data.addend ? static_cast<const T*>(data.addend) : c,
                           static_cast<const T*>(data.bias),
                           static_cast<T*>(data.c),
                           g.ldb,
                           g.ldc,
                           int(g.m),
                           int(g.n),
                           int(g.k),
                           g.alpha,
                           g.beta,
                           activation,
                           g.constant_b};
    if constexpr (!std::is_same_v<T, float>)
      if (!g.transpose_b) return launch_tile_gemm<T, false>(stream, p, rows, way);
    launch_tile_gemm<T, true>(stream, p, rows, way);
  });
}

}  // namespace encore::ops
