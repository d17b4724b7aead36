#include <algorithm>

#include "ops/moe/experts.h"

namespace encore::ops {

int tile_rows_for(Type type, int64_t rows, int64_t experts) {
  if (type == Type::f32) return kFloatRows;
  // Tiles of few rows read weights as often as an expert has tiles; the cache has room for a few times.
  return rows <= kFewRows * std::min(rows, experts) ? kFewRows : kManyRows;
}

void multiply_experts(Context& context, const Layer& layer, const Arrangement& arrangement) {
  switch (arrangement.tile_rows) {
    case kFewRows: return multiply_few(context, layer, arrangement);
    case kManyRows: return multiply_many(context, layer, arrangement);
    default: return multiply_floats(context, layer, arrangement);
  }
}

}  // namespace encore::ops
