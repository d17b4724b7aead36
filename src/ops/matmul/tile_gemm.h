// Small products on tensor cores, which take less time than a library's kernel and perhaps the activation's behind it:
// these read constant weights before earlier work is done, share out the depth within a cluster and end with the
// activation.
#pragma once
#include <cstdint>
#include <vector>

#include "device/blas.h"
#include "ops/nn/activation.h"

namespace encore::ops {

struct ProductData {
  const void *a, *b, *bias;  // no bias: null
  void* c;
  const void* addend = nullptr;  // what beta multiplies, lies as c does; null for c itself
};

// What a block makes of c, and the depth of a step, in halves: rows x columns x depth. Those of 64 rows are for
// warpgroups.
enum class TileShape : uint8_t { m32n64k64, m16n64k64, m16n64k128, m16n32k128, m64n64k64, m64n128k64 };
inline constexpr int kTileShapes = 6;
struct TileSize {
  int rows, columns, depth_bytes;
};
inline constexpr TileSize kTileSizes[kTileShapes] = {{32, 64, 128}, {16, 64, 128}, {16, 64, 256},
                                                     {16, 32, 256}, {64, 64, 128}, {64, 128, 128}};
inline constexpr TileShape kFirstOfWarpgroups = TileShape::m64n64k64;

// How many blocks share the depth of a tile; zero where the product is not made here.
struct TileGemmWay {
  int parts = 0;
  TileShape shape = TileShape::m32n64k64;
  bool operator==(const TileGemmWay&) const = default;
};

inline constexpr int kMostTileParts = 8;

// What a device has room for.
struct TileRoom {
  int multiprocessors, most_parts;
  bool warpgroups;
  bool operator==(const TileRoom&) const = default;
};
TileRoom tile_room(int device);

// Types that there are tiles of: floats only as TF32.
inline bool has_tiles(device::Type type, bool tf32) {
  return type == device::Type::f16 || type == device::Type::bf16 || (type == device::Type::f32 && tf32);
}

// Whether the product is made so.
bool is_tile_gemm(const device::Gemm& gemm, const ProductData& data, TileGemmWay way);
// All ways that the device has, where this product is made here: of halves, or of floats as TF32 where b is transposed;
// of one batch, n and k and the distances between rows are multiples of eight, addresses of 16 bytes.
std::vector<TileGemmWay> tile_gemm_ways(const device::Gemm& gemm, const ProductData& data, int device);
// Shapes of tiles of such values, which come first.
inline int tile_shapes(device::Type type, bool warpgroups) {
  return warpgroups && type != device::Type::f32 ? kTileShapes : int(kFirstOfWarpgroups);
}
// The one to take, if it pays.
TileGemmWay tile_gemm_way(const device::Gemm& gemm, const ProductData& data, const Activation& activation, int device);
TileGemmWay tile_gemm_way(const device::Gemm& gemm, const ProductData& data, const Activation& activation,
                          const TileRoom& room);

struct TileProblem {
  Type type;
  int64_t rows, columns, depth;
  bool slides = false;  // rows are taken from under the windows of a convolution
  bool operator==(const TileProblem&) const = default;
};
// The fastest whose blocks all run at once, if it takes less time than the library, whose kernel takes so long, and the
// activation's where that is another kernel.
TileGemmWay tiles_faster_than(double library_us, const TileProblem& problem, const Activation& activation,
                              const TileRoom& room);

// c = activation(alpha * a * b + beta * addend + bias), the same bits every time. Before there is an activation, the
// sum is rounded to c's type, as it is where another kernel reads it. Where there are no clusters, there is one part.
void tile_gemm(StreamRef stream, const device::Gemm& gemm, const ProductData& data, const Activation& activation,
               TileGemmWay way);

}  // namespace encore::ops
