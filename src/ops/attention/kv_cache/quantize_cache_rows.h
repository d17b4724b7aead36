#pragma once
#include "ops/attention/kv_cache/cache_quantization.h"
#include "ops/attention/kv_cache/new_rows.h"

namespace encore::ops {

// Keys and values [batch, head, row, size] become codes in caches [batch, head, capacity, row bytes].
struct RowsToQuantize {
  Type type = Type::f16;
  const void* from[2] = {};
  void* to[2] = {};
  CacheQuantization codes[2];
  int64_t batch = 0, heads = 0, rows = 0, size = 0;
};
void quantize_cache_rows(Context& context, const RowsToQuantize& rows, const NewRows& added);

}  // namespace encore::ops
