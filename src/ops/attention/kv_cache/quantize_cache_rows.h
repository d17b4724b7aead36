#pragma once
#include "ops/attention/kv_cache/cache_quantization.h"
#include "ops/attention/kv_cache/new_rows.h"

namespace encore::ops {

// Keys and values [batch, head, row, size] become codes in caches [batch, head, capacity, row bytes].
struct RowsToEncode {
  Type type = Type::f16;
  const void* from[2] = {};
  void* to[2] = {};
  CacheCodes codes[2];
  int64_t batch = 0, heads = 0, rows = 0, size = 0;
};
void encode_rows(Context& context, const RowsToEncode& rows, const NewRows& added);

}  // namespace encore::ops
