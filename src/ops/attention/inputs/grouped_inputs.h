// What operators of grouped queries read: new queries, keys and values, apart or in one tensor; a past in a buffer of
// keys; tables of rotations.
#pragma once
#include "ops/attention/kv_cache/extend_cache.h"
#include "ops/op.h"

namespace encore::ops {

// Batch, rows, head size and where the new ones are, of inputs 0 to 2; the cache knows its heads. Keys and values of no
// rows may mean that the cache is filled.
void take_new_rows(Context& context, CacheExtension& cache, bool may_be_filled = false);
// The past is inputs `past` and the next, buffers which the present has the shape of and may share, with room for
// `total` keys.
void take_buffers(Context& context, CacheExtension& cache, int past, int64_t total);
// Outputs 1 and 2, or scratch.
void take_present(Context& context, CacheExtension& cache);
// The tables are inputs `cos` and the next; of keys up to `total`, or of positions that are given.
void take_rotation(Context& context, CacheExtension& cache, int cos, int64_t total, bool interleaved);
// One number in host memory: how many keys the longest batch has, with the new ones.
int64_t total_keys(const Tensor& tensor, int64_t new_rows);
// Zeros that live as long as the op: sinks of all heads, which smooth a softmax.
void* keep_zeros(Prepack& prepack, int64_t count, Type type);

}  // namespace encore::ops
