// The paged KV cache: sequences without padding, whose keys and values live in pages that they find by a table.
#pragma once
#include <cstdint>

#include "ops/attention/dense/attend.h"

namespace encore::ops {

// Caches [page, slot, kv_head, size] of the queries' type, or of codes (cache_quantization.h): i8, f8e4m3 or i4, two in
// a byte, of which the value is the scale times as large. Rows are latent where all heads share one, whose first
// channels are values too: there are no others.
struct PagedCache {
  Type type = Type::f16;
  void *keys = nullptr, *values = nullptr;
  bool latent = false;
  int64_t count = 0, slots = 0, kv_heads = 0, size = 0;
  const int32_t* table = nullptr;  // [sequence, width]: which page; -1: none, its keys are unseen
  int64_t width = 0;
  const float *key_scales = nullptr, *value_scales = nullptr;
  bool keys_by_channel = false, values_by_channel = false;  // [kv_head, size], else one number for all
};

// Tokens of sequence i are those from starts[i] to starts[i + 1], behind `pasts[i]` that are in the cache already.
// Tokens behind the last sequence belong to none: they see no key.
struct PackedSequences {
  const int32_t *starts = nullptr, *pasts = nullptr;  // on the device
  int64_t count = 0, tokens = 0;
};

// New keys and values go to their slots; keys, and queries for themselves, are normalised and rotated on the way.
struct PagedCacheExtension {
  Type type = Type::f16;
  PackedSequences sequences;
  PagedCache pages;
  // Heads of a token are neighbours, from one token to the next it is so far, in elements.
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  int64_t heads = 0, q_token = 0, kv_token = 0;
  void* rotated_q = nullptr;        // [token, head, size]; null: queries stay as they are
  const int32_t* places = nullptr;  // of each token the slot of all slots, -1: none; null: as the table has it

  const void *cos = nullptr, *sin = nullptr;  // [positions, rotated / 2], or null
  int64_t positions = 0, rotated = 0, rotated_from = 0;
  bool interleaved = false;
  const void *q_weights = nullptr, *k_weights = nullptr;  // [size], or null
  float epsilon = 0;
};
// Reports starts that go down, lengths that the table has no room for, and places and positions out of range.
void extend_paged_cache(Context& context, const PagedCacheExtension& extension);

// Of what is attended, heads begin at multiples of 16 bytes.
struct AttendPaged {
  Type type = Type::f16;
  PackedSequences sequences;
  PagedCache pages;
  int64_t heads = 0;
  const void* q = nullptr;
  int64_t q_token = 0;
  void* y = nullptr;  // [token, head, value_size]
  int64_t value_size = 0;
  double scale = 1, softcap = 0;
  int64_t before = -1;  // keys before a query's own that it sees; below zero: all
  bool causal = true;
  const void* sinks = nullptr;
  // What is not known is bounded: keys of a sequence, and its new tokens. No more than a guess of how to share out
  // work.
  int64_t most_keys = 0, most_queries = 0;
};
void attend_paged(Context& context, const AttendPaged& problem);
// Where rows are latent:
void attend_paged_latent(Context& context, const AttendPaged& problem);
// Where the caches have codes:
void attend_paged_int8(Context& context, const AttendPaged& problem);
void attend_paged_int4(Context& context, const AttendPaged& problem);
void attend_paged_float8(Context& context, const AttendPaged& problem);

// Of each token a list of keys besides those that `before` lets it see, if it sees any of them (`local`).
struct SelectedKeys {
  const int32_t *indices = nullptr, *counts = nullptr;  // [token, most], [token]
  int64_t most = 0;
  bool local = false;
  // Rows that are selected in place of the pages': [sequence, capacity, kv_head or one, size], or null.
  const void *keys = nullptr, *values = nullptr;
  const int32_t* lengths = nullptr;  // of each sequence
  int64_t capacity = 0, kv_heads = 0;
};
void attend_paged_selected(Context& context, const AttendPaged& problem, const SelectedKeys& selected);

}  // namespace encore::ops
