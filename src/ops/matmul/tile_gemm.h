// Products of some rows of halves on tensor cores, which take less time than it takes a library's kernel to begin:
// these read constant weights before earlier work is done, share out the depth within a cluster and end with an
// activation.
#pragma once
#include <vector>

#include "device/blas.h"
#include "ops/nn/activation.h"

namespace encore::ops {

struct ProductData {
  const void *a, *b, *bias;  // no bias: null
  void* c;
  const void* addend = nullptr;  // what beta multiplies, lies as c does; null for c itself
};

// One of the ways to make such a product: the tile of a block, and how many of them share the depth. Without rows it is
// none at all.
struct TileGemmWay {
  int rows = 0, columns = 0, parts = 1;
  bool operator==(const TileGemmWay&) const = default;
};

// All of them, where this product is made here: of one batch, n and k and the distances between rows are multiples of
// eight, addresses of 16 bytes.
std::vector<TileGemmWay> tile_gemm_ways(const device::Gemm& gemm, const ProductData& data);
// The one to take, if it surely pays.
TileGemmWay tile_gemm_way(const device::Gemm& gemm, const ProductData& data, int multiprocessors);

// c = activation(alpha * a * b + beta * addend + bias), the same bits every time. Before there is an activation, the
// sum is rounded to c's type, as it is where another kernel reads it. Where there are no clusters, there is one part.
void tile_gemm(StreamRef stream, const device::Gemm& gemm, const ProductData& data, const Activation& activation,
               TileGemmWay way);

}  // namespace encore::ops
