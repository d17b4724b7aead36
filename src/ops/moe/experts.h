// Products of rows with their experts' weights, and what follows them: bias, activation, and a second factor.
#pragma once
#include "ops/moe/route.h"
#include "ops/moe/weights.h"

namespace encore::ops {

enum class MoeActivation { relu, relu2, gelu, geglu, silu, swiglu, identity };
// Where a layer's second factors are: nowhere, each after its first one, all after all first ones, in a matrix of their
// own.
enum class Factors { single, neighbours, halves, apart };

// One layer of all experts: out[row][o] = activation(weights[o] . x[row] + bias[o]), times the second factor.
struct Layer {
  Type type = Type::undefined;  // float, or a half
  Matrix weights, second;       // the latter for Factors::apart
  const void *bias = nullptr, *second_bias = nullptr;
  Factors factors = Factors::single;
  MoeActivation activation = MoeActivation::identity;
  float alpha = 1, beta = 0, limit = 0;  // of swiglu
  bool limits_product = false;           // with its sigmoid, rather than what the sigmoid is given
  int64_t experts = 0, depth = 0, results = 0;
  // Rows are those of tokens, `chosen` for each, or already in the order of places; so are results.
  const void* x = nullptr;
  void* y = nullptr;
  int64_t chosen = 1;
  bool x_of_tokens = false, y_of_rows = false;
};

// Rows of a tile which suit both layers.
int tile_rows_for(const Layer& up, const Layer& down, int64_t rows);
// The arrangement's tiles have so many rows.
void multiply_experts(Context& context, const Layer& layer, const Arrangement& arrangement);

// The ways to do it: GEMV of few rows of halves, grouped GEMM of many of them, and plain tiles for anything.
inline constexpr int kGemvRows = 8, kGroupedGemmRows = 64, kPlainGemmRows = 32;
void experts_gemv(Context& context, const Layer& layer, const Arrangement& arrangement);
void experts_grouped_gemm(Context& context, const Layer& layer, const Arrangement& arrangement);
void experts_plain_gemm(Context& context, const Layer& layer, const Arrangement& arrangement);

// Makes [experts, rows, depth] of weights that were packed for a GPU's kernels of another kind, as models for GPUs have
// them: bytes are as many. `depth` is a multiple of 64.
void unpack_interleaved(StreamRef stream, const uint8_t* packed, uint8_t* plain, int bits, int64_t experts,
                        int64_t rows, int64_t depth);

// y = x, in another float type; of the products' and scales' types.
void convert_scales(StreamRef stream, const Tensor& x, Type type, void* y);

}  // namespace encore::ops
