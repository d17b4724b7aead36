// com.microsoft's DecoderMaskedMultiHeadAttention and DecoderMaskedSelfAttention: a step of a decoder, of one query,
// whose past and present are one buffer.
#include <cmath>

#include "ops/attention/dense/attend_beams.h"
#include "ops/attention/inputs/projection.h"
#include "ops/attention/inputs/rotate_heads.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

// What both have.
class Step : public Op {
 protected:
  explicit Step(const NodeInfo& node)
      : heads_(node.get_int("num_heads", 0)),
        scale_(node.get_float("scale", 0)),
        filter_(node.get_float("mask_filter_value", -10000)),
        shares_(node.get_int("past_present_share_buffer", 0) != 0) {
    require(heads_ > 0 && heads_ < kSizeCap, "num_heads is ", heads_, "; it must be above zero and below ", kSizeCap);
    require(std::isfinite(scale_) && !std::isnan(filter_), "scale is ", scale_, " and mask_filter_value ", filter_,
            "; they must be numbers");
  }

  // The problem of `q`, but for where y is.
  Attend problem_of(const Heads& q, Type type, int64_t keys) const {
    require(q.rows == 1, "there are ", q.rows, " queries; there must be one, for this is a step of a decoder");
    require(q.size > 0 && q.size <= kMostBeamSize && q.size % chunk_of(type) == 0, "heads have ", q.size,
            " values; they must be a multiple of ", chunk_of(type), " and at most ", kMostBeamSize);
    Attend p;
    p.type = type;
    p.batch = q.batch, p.heads = p.kv_heads = heads_;
    p.queries = 1, p.keys = keys, p.head_size = p.value_size = q.size;
    p.q = q.view;
    p.scale = scale_of(scale_, q.size);
    return p;
  }

  void add_mask(BeamCache& cache, const Attend& p, const Tensor* mask) const {
    if (!mask) return;
    require(mask->shape == Shape{p.batch, p.keys}, "mask_index has shape ", mask->shape.str(), "; [", p.batch, ",",
            p.keys, "] is wanted");
    cache.mask = mask->as<const int32_t>();
    cache.filter = filter_;
  }
  static void add_bias(Attend& p, const Tensor* bias) {
    if (!bias) return;
    const Shape& shape = bias->shape;
    require(shape.rank() == 4 && (shape[0] == p.batch || shape[0] == 1) && (shape[1] == p.heads || shape[1] == 1) &&
                shape[2] == 1 && shape[3] == p.keys,
            "attention_bias has shape ", shape.str(), "; [", p.batch, " or 1,", p.heads, " or 1,1,", p.keys,
            "] is wanted");
    p.mask.data = bias->data;
    p.mask.head = shape[1] == 1 ? 0 : p.keys;
    p.mask.batch = shape[0] == 1 ? 0 : shape[1] * p.keys;
  }
  static void add_beams(BeamCache& cache, const Attend& p, const Tensor* width, const Tensor* indirection) {
    if (!width) return;
    require(width->shape.is_scalar(), "beam_width has shape ", width->shape.str(), "; it must be one number");
    cache.width = *width->as<const int32_t>();
    require(cache.width > 0 && p.batch % cache.width == 0, "beam_width is ", cache.width,
            "; it must divide the batch of ", p.batch);
    if (cache.width == 1) return;
    require(indirection, "cache_indirection is wanted for a beam_width of ", cache.width);
    const Shape& shape = indirection->shape;
    require(shape.rank() == 3 && shape[0] == p.batch / cache.width && shape[1] == cache.width && shape[2] >= p.keys - 1,
            "cache_indirection has shape ", shape.str(), "; [", p.batch / cache.width, ",", cache.width, ",at least ",
            p.keys - 1, "] is wanted");
    cache.indirection = indirection->as<const int32_t>();
    cache.places = shape[2];
  }

  int64_t heads_;
  float scale_, filter_;
  bool shares_;
};

class DecoderMaskedMultiHeadAttention final : public Step {
  enum {
    kQuery,
    kKey,
    kValue,
    kMask,
    kAttentionBias,
    kPastKey,
    kPastValue,
    kPastLength,
    kBeamWidth,
    kCacheIndirection,
    kBias
  };

 public:
  explicit DecoderMaskedMultiHeadAttention(const NodeInfo& node)
      : Step(node), shows_(node.get_int("output_qk", 0) != 0), scores_type_(Type::f32) {
    if (node.has_input(kPastKey) && !shares_)
      fail(Code::not_supported,
           "a past that does not share its buffer is not supported; set past_present_share_buffer");
    if (node.has_output(3)) scores_type_ = node.output_type(3);
  }

  void run(Context& context) const override {
    const Tensor &query = context.input(kQuery), *key = context.find_input(kKey), *value = context.find_input(kValue);
    const Type type = query.type;
    const Shape& shape = query.shape;
    const int64_t parts = key ? 1 : 3;
    require(shape.rank() == 3 && shape[2] % (parts * heads_) == 0, "query has shape ", shape.str(),
            "; three dimensions are wanted, of which ", parts * heads_, " divides the last");
    const int64_t batch = shape[0], width = shape[2] / parts, size = width / heads_;
    const auto part = [&](const void* data) { return heads_in_rows(data, batch, shape[1], heads_, size, shape[2]); };
    const Heads q = part(query.data);

    BeamCache cache;
    int64_t keys;
    if (const Tensor* past_key = context.find_input(kPastKey)) {
      const Tensor& past_value = context.input(kPastValue);
      const Shape& past = past_key->shape;
      require(past.rank() == 4 && past == Shape{batch, heads_, past.rank() == 4 ? past[2] : 0, size} &&
                  past_value.shape == past,
              "past_key has shape ", past.str(), " and past_value ", past_value.shape.str(), "; [", batch, ",", heads_,
              ",rows,", size, "] is wanted");
      cache.capacity = past[2];
      keys = past_rows_of(context.input(kPastLength), 1, cache.capacity) + 1;
      Heads k, v;
      if (key) {
        require(value && key->shape == shape && value->shape == shape, "query ", shape.str(), ", key ",
                key->shape.str(), " and value ", value ? value->shape.str() : "", " must be alike");
        k = part(key->data), v = part(value->data);
      } else {
        k = part(offset(query.data, width, type)), v = part(offset(query.data, 2 * width, type));
      }
      cache.new_key = k.view, cache.new_value = v.view;
      require(context.wants_output(1) && context.wants_output(2),
              "present_key and present_value are wanted where there is a past");
      cache.keys = context.output(1, past).data;
      cache.values = context.output(2, past).data;
      copy_bytes(context.stream(), past_key->data, cache.keys, int64_t(past_key->bytes()));
      copy_bytes(context.stream(), past_value.data, cache.values, int64_t(past_value.bytes()));
    } else {
      require(key && value, "key and value are wanted where there is no past");
      const Shape& whole = key->shape;
      require(whole.rank() == 4 && whole == Shape{batch, heads_, whole.rank() == 4 ? whole[2] : 0, size} &&
                  value->shape == whole,
              "key has shape ", whole.str(), " and value ", value->shape.str(), "; [", batch, ",", heads_, ",rows,",
              size, "] is wanted where there is no past");
      keys = cache.capacity = whole[2];
      cache.keys = key->data, cache.values = value->data;
    }

    Attend problem = problem_of(q, type, keys);
    if (const Tensor* bias = context.find_input(kBias)) {
      require(bias->shape == Shape{3 * width}, "bias has shape ", bias->shape.str(), "; [", 3 * width, "] is wanted");
      cache.q_bias = bias->data;
      cache.k_bias = offset(cache.q_bias, width, type), cache.v_bias = offset(cache.q_bias, 2 * width, type);
    }
    add_mask(cache, problem, context.find_input(kMask));
    add_bias(problem, context.find_input(kAttentionBias));
    add_beams(cache, problem, context.find_input(kBeamWidth), context.find_input(kCacheIndirection));
    const Tensor y = context.output(0, {batch, 1, width});
    problem.y = heads_in_rows(y.data, batch, 1, heads_, size, width).view;
    if (shows_ && context.wants_output(3)) {
      cache.scores = context.output(3, {batch, heads_, 1, keys}).data;
      cache.scores_type = scores_type_;
    }
    if (batch > 0) attend_beams(context, problem, cache);
  }

 private:
  bool shows_;
  Type scores_type_;
};

class DecoderMaskedSelfAttention final : public Step {
  enum { kInput, kWeights, kBias, kMask, kPast, kAttentionBias, kPastLength, kBeamWidth, kCacheIndirection };

 public:
  explicit DecoderMaskedSelfAttention(const NodeInfo& node)
      : Step(node), rotary_(node.get_int("do_rotary", 0) != 0), tf32_(node.settings.use_tf32) {
    if (!shares_)
      fail(Code::not_supported,
           "a past that does not share its buffer is not supported; set past_present_share_buffer");
  }

  void run(Context& context) const override {
    const Tensor &input = context.input(kInput), &weights = context.input(kWeights), &past = context.input(kPast);
    const Shape &shape = input.shape, &whole = past.shape;
    require(shape.rank() == 3, "input has shape ", shape.str(), "; three dimensions are wanted");
    const int64_t batch = shape[0], width = widths_of({}, heads_, weights).keys, size = width / heads_;
    require(whole.rank() == 5 && whole == Shape{2, batch, heads_, whole.rank() == 5 ? whole[3] : 0, size},
            "past has shape ", whole.str(), "; [2,", batch, ",", heads_, ",rows,", size, "] is wanted");
    BeamCache cache;
    cache.capacity = whole[3];
    const int64_t before = past_rows_of(context.input(kPastLength), 1, cache.capacity);
    const Tensor y = context.output(0, {batch, shape[1], width}), present = context.output(1, whole);
    copy_bytes(context.stream(), past.data, present.data, int64_t(past.bytes()));
    if (batch == 0) return;
    const auto [q, k, v] = project(context, input, batch, shape[1], weights, &context.input(kBias), heads_, {}, tf32_);
    Attend problem = problem_of(q, input.type, before + 1);
    if (rotary_) rotate_heads(context, input.type, q, k, size, before);
    cache.keys = present.data;
    cache.values = offset(present.data, whole.count(1, 5), input.type);
    cache.new_key = k.view, cache.new_value = v.view;
    add_mask(cache, problem, context.find_input(kMask));
    add_bias(problem, context.find_input(kAttentionBias));
    add_beams(cache, problem, context.find_input(kBeamWidth), context.find_input(kCacheIndirection));
    problem.y = heads_in_rows(y.data, batch, 1, heads_, size, width).view;
    attend_beams(context, problem, cache);
  }

 private:
  bool rotary_, tf32_;
};

}  // namespace

std::vector<OpRow> decoder_masked_rows() {
  const Types types{Type::f32, Type::f16}, whole{Type::i32};
  return {{.domain = kMicrosoft,
           .name = "DecoderMaskedMultiHeadAttention",
           .since = 1,
           .types = {in(0, types), in(3, whole), in(7, whole), in(8, whole), in(9, whole)},
           .make = make<DecoderMaskedMultiHeadAttention>,
           .host_inputs = {7, 8},
           .may_reuse = {{5, 1}, {6, 2}}},
          {.domain = kMicrosoft,
           .name = "DecoderMaskedSelfAttention",
           .since = 1,
           .types = {in(0, types), in(3, whole), in(6, whole), in(7, whole), in(8, whole)},
           .make = make<DecoderMaskedSelfAttention>,
           .host_inputs = {6, 7},
           .may_reuse = {{4, 1}}}};
}

}  // namespace encore::ops
