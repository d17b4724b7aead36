// New keys and values go into the KV cache after the past; keys, and queries for themselves, are rotated (RoPE) on
// the way.
#pragma once
#include <cstdint>

#include "ops/attention/kv_cache/cache_quantization.h"
#include "ops/attention/kv_cache/window_cache.h"
#include "ops/op.h"

namespace encore::ops {

struct CacheExtension {
  Type type = Type::f16;
  int64_t batch = 0, rows = 0, heads = 0, kv_heads = 0, size = 0;
  // Heads of a token are neighbours, from one token to the next it is so far, in elements.
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  int64_t q_token = 0, kv_token = 0;
  void* rotated_q = nullptr;  // [batch, row, head, size]; null: queries stay as they are

  void *keys = nullptr, *values = nullptr;  // [batch, kv_head, capacity, size]
  int64_t capacity = 0;
  CacheQuantization codes[2];  // of keys and values, both of one kind: instead of a size there are row_bytes() then
  // Of a cache that holds a window, or of a stage for it: the past is there already, and none is copied.
  Residents residents;
  bool staged = false;
  // What is copied first, unless it is the same memory: [batch, kv_head, past_rows, size], or null.
  const void *past_keys = nullptr, *past_values = nullptr;
  int64_t past_rows = 0;
  bool whole = false;  // what the past has behind the new rows is copied, too, as if it were the same memory
  // Of each batch the last of the keys, on the device. The new rows are those that end there; or with `from_start` the
  // first ones of all, of which those after the last key pad the batch.
  const int32_t* last_keys = nullptr;
  int beyond_last = 0;  // how far beyond it these are: 1 where they are lengths
  bool from_start = false;
  bool filled = false;  // the past has their keys and values already: queries alone are new

  // Rotation, if there are cosines: [positions, rotated / 2]. The position is that of the key, or the one that is
  // given.
  const void *cos = nullptr, *sin = nullptr;
  int64_t positions = 0, rotated = 0;
  int64_t rotated_from = 0;  // the first value of a head that is rotated: a multiple of 8
  bool interleaved = false;
  const int64_t* position_ids = nullptr;  // [batch, row]
  // Before it the root mean square of a head becomes one, and values take their weights, both [size]; or null.
  const void *q_weights = nullptr, *k_weights = nullptr;
  float q_epsilon = 0, k_epsilon = 0;
};

// Rows before and after those of the past and the new ones become zeros where not the whole past is copied. Where the
// last key is not in the cache, or the new rows would begin before it, it is reported, and no row is written that is
// not there.
void extend_cache(Context& context, const CacheExtension& extension);
// What that does first: the new rows are not written.
void copy_past(Context& context, const CacheExtension& extension);

}  // namespace encore::ops
