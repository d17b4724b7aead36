#include <algorithm>
#include <cstdint>

#include "ops/moe/experts.h"

namespace encore::ops {

namespace {

bool is_whole(const void* address, int64_t row_bytes) {
  return row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

// Whether all that mma reads is 16 bytes long, and lies so, and such weights share a scale.
bool suits_tiles(const Layer& l) {
  const auto suits = [&](const Matrix& m) {
    return is_whole(m.values, m.bits ? l.depth * m.bits / 8 : 2 * l.depth) &&
           (m.bits == 0 || m.block == 0 || m.block * m.bits >= 128);
  };
  return l.type != Type::f32 && is_whole(l.x, 2 * l.depth) && suits(l.weights) &&
         (l.factors != Factors::apart || suits(l.second));
}

}  // namespace

int tile_rows_for(const Layer& up, const Layer& down, int64_t rows) {
  if (!suits_tiles(up) || !suits_tiles(down)) return kPlainGemmRows;
  // Tiles of few rows read weights as often as an expert has tiles; the cache has room for a few times.
  return rows <= kGemvRows * std::min(rows, up.experts) ? kGemvRows : kGroupedGemmRows;
}

void multiply_experts(Context& context, const Layer& layer, const Arrangement& arrangement) {
  switch (arrangement.tile_rows) {
    case kGemvRows: return experts_gemv(context, layer, arrangement);
    case kGroupedGemmRows: return experts_grouped_gemm(context, layer, arrangement);
    default: return experts_plain_gemm(context, layer, arrangement);
  }
}

}  // namespace encore::ops
