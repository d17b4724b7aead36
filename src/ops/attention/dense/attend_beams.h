// Decode with beam search: attention of one query over a KV cache in which beams find each other's keys.
#pragma once
#include "ops/attention/dense/attend.h"

namespace encore::ops {

// Keys lie in chunks of 16 bytes, [batch, head, chunk, capacity, part of chunk]: so neighbouring threads read
// neighbouring keys. Values are [batch, head, capacity, size].
struct BeamCache {
  void *keys = nullptr, *values = nullptr;
  int64_t capacity = 0;
  // The new key and value [batch, head, 0, size], which become the last of Attend::keys; null: there are none.
  HeadRows new_key, new_value;
  const void *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr;  // [head, size]
  // Of batches that are `width` beams each, [batch, beam, places]: which beam a past key is of. Null: one's own.
  const int32_t* indirection = nullptr;
  int64_t width = 1, places = 0;
  const int32_t* mask = nullptr;  // [batch, key], zero where `filter` is added to the score
  float filter = 0;
  void* scores = nullptr;  // an output [batch, head, key], before the softmax
  Type scores_type = Type::f32;
};

// Of `problem`, whose k and v are not looked at, and whose heads are of one size, a multiple of a chunk and at most
// kMostBeamSize.
inline constexpr int64_t kMostBeamSize = 256;
int64_t chunk_of(Type type);  // how many values it has
void attend_beams(Context& context, const Attend& problem, const BeamCache& cache);

}  // namespace encore::ops
