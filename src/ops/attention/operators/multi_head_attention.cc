// com.microsoft's MultiHeadAttention. Heads are read where they are; only a bias, or a past, makes them move.
#include <cmath>

#include "ops/attention/inputs/heads.h"
#include "ops/attention/inputs/key_mask.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

enum { kQuery, kKey, kValue, kBias, kMask, kAttentionBias, kPastKey, kPastValue, kPastLength, kCacheIndirection };

class MultiHeadAttention : public Op {
 public:
  explicit MultiHeadAttention(const NodeInfo& node)
      : heads_(node.get_int("num_heads", 0)),
        scale_(node.get_float("scale", 0)),
        filter_(node.get_float("mask_filter_value", -10000)),
        causal_(node.get_int("unidirectional", 0) == 1),
        tf32_(node.settings.use_tf32) {
    require(heads_ > 0, "num_heads is ", heads_, "; it must be above zero");
    require(std::isfinite(scale_) && !std::isnan(filter_), "scale is ", scale_, " and mask_filter_value ", filter_,
            "; they must be numbers");
    if (node.has_input(kCacheIndirection))
      fail(Code::not_supported, "cache_indirection is only supported by DecoderMaskedMultiHeadAttention");
    if (node.has_output(3) && node.output_type(3) != node.input_type(kQuery))
      fail(Code::not_supported, "qk is ", device::name(node.output_type(3)), " and query ",
           device::name(node.input_type(kQuery)), "; they must be of one type");
    const auto q = node.input_dims(kQuery);
    require(!q || q->size() == (node.has_input(kKey) ? 3 : 5), "query has rank ", q ? q->size() : 0, "; it must be ",
            node.has_input(kKey) ? "3 where there is a key" : "5 where there is no key");
  }

  size_t cleared_bytes() const override { return kAttentionClears; }
  void run(Context& context) const override {
    const Tensor &query = context.input(kQuery), *key = context.find_input(kKey), *value = context.find_input(kValue);
    const Type type = query.type;
    Heads q, k, v;
    if (!key) {
      take_packed(query, type, 3, "query", {&q, &k, &v});
      require(!value, "there is a value without a key");
    } else {
      q = take_rows(query, "query");
      if (key->shape.rank() == 5) {
        take_packed(*key, type, 2, "key", {&k, &v});
        require(!value, "a packed key ", key->shape.str(), " has the values with it; there can be no other ones");
      } else {
        require(value && value->shape.rank() == key->shape.rank(), "key has shape ", key->shape.str(),
                "; a value of as many dimensions is wanted with it");
        k = take(*key, "key"), v = take(*value, "value");
      }
    }
    require(k.batch == q.batch && v.batch == q.batch && v.rows == k.rows && k.size == q.size, "query ",
            query.shape.str(), ", key ", key ? key->shape.str() : "in it", " and value ",
            value ? value->shape.str() : "in it", " don't fit together");
    require(q.size > 0, "query ", query.shape.str(), " has heads of no size");

    // A key of heads comes from an encoder, and is not projected here.
    const bool projected = !key || key->shape.rank() != 4;
    const void *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr;
    if (const Tensor* bias = context.find_input(kBias)) {
      const int64_t width = heads_ * q.size;
      require(bias->shape == Shape{2 * width + heads_ * v.size}, "bias has shape ", bias->shape.str(), "; [",
              2 * width + heads_ * v.size, "] is wanted");
      q_bias = bias->data;
      if (projected) k_bias = offset(q_bias, width, type), v_bias = offset(q_bias, 2 * width, type);
    }
    const int64_t queries = q.rows;
    HeadMoves moves(context, type);
    moves.add_bias(q, q_bias);
    const auto [k_cache, v_cache] = caches(context, k, v);
    moves.append(k, k_bias, k_cache);
    moves.append(v, v_bias, v_cache);
    moves.run();

    Attend problem;
    problem.type = type, problem.tf32 = tf32_;
    problem.batch = q.batch, problem.heads = problem.kv_heads = heads_;
    problem.queries = queries, problem.keys = k.rows, problem.head_size = q.size, problem.value_size = v.size;
    problem.q = q.view, problem.k = k.view, problem.v = v.view;
    problem.scale = scale_of(scale_, q.size);
    if (causal_) problem.visible.after = 0;
    problem.visible.offset = k.rows - queries;
    const Tensor y = context.output(0, {q.batch, queries, checked_product(heads_, v.size)});
    problem.y = heads_in_rows(y.data, q.batch, queries, heads_, v.size, heads_ * v.size).view;
    if (context.wants_output(3)) {
      const Tensor scores = context.output(3, {q.batch, heads_, queries, k.rows});
      if (scores.count() > 0) problem.scores = {scores.data, ScoresOutput::masked};
    }
    add_masks(context, problem, context.find_input(kMask), context.find_input(kAttentionBias), filter_);
    if (y.count() > 0 || problem.scores.data) attend(context, problem);
  }

 private:
  Heads take_rows(const Tensor& tensor, const char* what) const {
    const Shape& shape = tensor.shape;
    require(shape.rank() == 3 && shape[2] % heads_ == 0, what, " has shape ", shape.str(),
            "; three dimensions are wanted, of which ", heads_, " heads divide the last");
    return heads_in_rows(tensor.data, shape[0], shape[1], heads_, shape[2] / heads_, shape[2]);
  }
  Heads take(const Tensor& tensor, const char* what) const {
    const Shape& shape = tensor.shape;
    if (shape.rank() != 4) return take_rows(tensor, what);
    require(shape[1] == heads_, what, " has shape ", shape.str(), "; num_heads is ", heads_);
    return heads_of_cache(tensor.data, shape[0], heads_, shape[2], shape[3], shape[2]);
  }
  // [batch, row, head, `parts`, size]
  void take_packed(const Tensor& tensor, Type type, int parts, const char* what,
                   std::initializer_list<Heads*> heads) const {
    const Shape& shape = tensor.shape;
    require(shape.rank() == 5 && shape[2] == heads_ && shape[3] == parts, what, " has shape ", shape.str(),
            "; [batch, row, ", heads_, ", ", parts, ", size] is wanted");
    int64_t part = 0;
    for (Heads* one : heads)
      *one = heads_in_rows(offset(tensor.data, part++ * shape[4], type), shape[0], shape[1], heads_, shape[4],
                           shape.count(2, 5), parts * shape[4]);
  }

  struct Caches {
    Cache k, v;
  };
  static Caches caches(Context& context, const Heads& k, const Heads& v) {
    const Tensor *past_k = context.find_input(kPastKey), *past_v = context.find_input(kPastValue);
    require(!past_k == !past_v, "past_key and past_value are wanted together");
    const auto fits = [](const Tensor& past, const Heads& now) {
      const Shape& shape = past.shape;
      return shape.rank() == 4 && shape[0] == now.batch && shape[1] == now.heads && shape[3] == now.size;
    };
    require(!past_k || (fits(*past_k, k) && fits(*past_v, v) && past_k->shape[2] == past_v->shape[2]), "past_key ",
            past_k ? past_k->shape.str() : "", " and past_value ", past_v ? past_v->shape.str() : "",
            " don't fit the key and the value");
    const int64_t past_capacity = past_k ? past_k->shape[2] : 0;
    int64_t past_rows = past_capacity, capacity = past_capacity + k.rows;
    const Tensor* length = context.find_input(kPastLength);
    if (length && past_k) {
      past_rows = past_rows_of(*length, k.rows, past_capacity);
      capacity = past_capacity;
    }
    const auto cache = [&](int output, const Tensor* past, const Heads& now) {
      Cache made{past ? past->data : nullptr, past_rows, past_capacity, nullptr, capacity};
      if (context.wants_output(output))
        made.present = context.output(output, {now.batch, now.heads, capacity, now.size}).data;
      return made;
    };
    const Cache of_k = cache(1, past_k, k);
    return {of_k, cache(2, past_v, v)};
  }

  int64_t heads_;
  float scale_, filter_;
  bool causal_, tf32_;
};

}  // namespace

std::vector<OpRow> multi_head_attention_rows() {
  const Types types = kHalves | Types{Type::f32};
  return {{.domain = kMicrosoft,
           .name = "MultiHeadAttention",
           .since = 1,
           .types = {in(kQuery, types), in(kMask, {Type::i32}), in(kPastLength, {Type::i32})},
           .make = make<MultiHeadAttention>,
           .host_inputs = {kPastLength}}};
}

}  // namespace encore::ops
