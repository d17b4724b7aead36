#include "ops/attention/inputs/grouped_inputs.h"

#include "device/memory.h"
#include "ops/attention/inputs/heads.h"

namespace encore::ops {
void take_new_rows(Context& context, CacheExtension& cache, bool may_be_filled) {
  const Tensor &query = context.input(0), *key = context.find_input(1), *value = context.find_input(2);
  require(query.shape.rank() == 3, "query has shape ", query.shape.str(), "; it must have rank 3");
  cache.type = query.type;
  cache.batch = query.shape[0], cache.rows = query.shape[1];
  const int64_t width = query.shape[2], heads = key ? cache.heads : cache.heads + 2 * cache.kv_heads;
  require(width > 0 && width % heads == 0, "query ", query.shape.str(), " cannot be divided into ", heads, " heads");
  cache.size = width / heads;
  require(cache.rows < kSizeCap && cache.size < kSizeCap, "query ", query.shape.str(),
          " is more than there are kernels for");
  cache.q = query.data;
  cache.q_token = width;
  if (key) {
    require(value, "value is wanted with key");
    const Shape wanted{cache.batch, cache.rows, checked_product(cache.kv_heads, cache.size)};
    if (may_be_filled && key->shape == Shape{cache.batch, 0, wanted[2]} && value->shape == key->shape) {
      cache.filled = cache.rows > 0;
      return;
    }
    require(key->shape == wanted && value->shape == wanted, "key ", key->shape.str(), " and value ", value->shape.str(),
            " must be ", wanted.str(), " beside query ", query.shape.str());
    cache.k = key->data, cache.v = value->data;
    cache.kv_token = wanted[2];
    return;
  }
  cache.k = offset(query.data, cache.heads * cache.size, cache.type);
  cache.v = offset(query.data, (cache.heads + cache.kv_heads) * cache.size, cache.type);
  cache.kv_token = width;
}

void take_buffers(Context& context, CacheExtension& cache, int past, int64_t total) {
  const Tensor &key = context.input(past), &value = context.input(past + 1);
  const Shape& shape = key.shape;
  require(
      shape.rank() == 4 && shape == Shape{cache.batch, cache.kv_heads, shape[2], cache.size} && value.shape == shape,
      "past_key ", shape.str(), " and past_value ", value.shape.str(), " must be [", cache.batch, ",", cache.kv_heads,
      ",keys,", cache.size, "]");
  require(total <= shape[2] && shape[2] < kSizeCap, "total_sequence_length is ", total, ", and past_key ", shape.str(),
          " has room for ", shape[2], " keys; give a larger one");
  cache.past_keys = key.data, cache.past_values = value.data;
  cache.past_rows = cache.capacity = shape[2];
  cache.whole = true;
}

void take_present(Context& context, CacheExtension& cache) {
  const Shape shape{cache.batch, cache.kv_heads, cache.capacity, cache.size};
  const auto make = [&](int output) {
    if (context.wants_output(output)) return context.output(output, shape).data;
    return context.scratch(size_t(shape.count()) * device::size_bytes(cache.type));
  };
  cache.keys = make(1);
  cache.values = make(2);
}

void take_rotation(Context& context, CacheExtension& cache, int cos_at, int64_t total, bool interleaved) {
  const Tensor &cos = context.input(cos_at), &sin = context.input(cos_at + 1);
  require(cos.shape.rank() == 2 && sin.shape == cos.shape && 2 * cos.shape[1] <= cache.size, "cos_cache ",
          cos.shape.str(), " and sin_cache ", sin.shape.str(), " must be [positions, at most ", cache.size / 2, "]");
  require(cos.shape[0] >= total || cache.position_ids, "cos_cache ", cos.shape.str(), " has fewer positions than the ",
          total, " keys");
  if (cos.count() == 0) return;  // nothing is rotated
  cache.cos = cos.data, cache.sin = sin.data;
  cache.positions = cos.shape[0];
  cache.rotated = 2 * cos.shape[1];
  cache.interleaved = interleaved;
}

int64_t total_keys(const Tensor& tensor, int64_t new_rows) {
  require(tensor.shape.count() == 1, "total_sequence_length has shape ", tensor.shape.str(), "; it must be one number");
  const int64_t total = *tensor.as<const int32_t>();
  require(total >= new_rows, "total_sequence_length is ", total, ", and there are ", new_rows, " new rows");
  return total;
}

void* keep_zeros(Prepack& prepack, int64_t count, Type type) {
  const size_t bytes = size_t(count) * device::size_bytes(type);
  void* const kept = prepack.keep(bytes);
  device::fill(prepack.stream(), kept, 0, bytes);
  return kept;
}

}  // namespace encore::ops
