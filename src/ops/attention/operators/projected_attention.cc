// com.microsoft's Attention: a projection with its bias, whose heads are read where the product has left them.
#include "ops/attention/operators/projected_attention.h"

#include <cmath>

#include "ops/attention/inputs/key_mask.h"
#include "ops/attention/inputs/rotate_heads.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

enum { kInput, kWeights, kBias, kMask, kPast, kAttentionBias, kPastLength };

class Attention final : public ProjectedAttention {
 public:
  explicit Attention(const NodeInfo& node) : ProjectedAttention(node, {kMask, kPast, kAttentionBias, kPastLength}) {}

  void run(Context& context) const override {
    const Tensor &input = context.input(kInput), &weights = context.input(kWeights);
    attend_projected(context, input, weights, input.type, [&] {
      return project(context, input, input.shape[0], input.shape[1], weights, context.find_input(kBias), heads_, sizes_,
                     tf32_);
    });
  }
};

}  // namespace

ProjectedAttention::ProjectedAttention(const NodeInfo& node, const Slots& slots)
    : heads_(node.get_int("num_heads", 0)),
      tf32_(node.settings.use_tf32),
      slots_(slots),
      rotated_(node.get_int("rotary_embedding_dim", 0)),
      scale_(node.get_float("scale", 0)),
      filter_(node.get_float("mask_filter_value", -10000)),
      causal_(node.get_int("unidirectional", 0) == 1),
      rotary_(node.get_int("do_rotary", 0) != 0),
      shares_(node.get_int("past_present_share_buffer", 0) != 0) {
  require(heads_ > 0, "num_heads is ", heads_, "; it must be above zero");
  require(std::isfinite(scale_) && !std::isnan(filter_), "scale is ", scale_, " and mask_filter_value ", filter_,
          "; they must be numbers");
  require(rotated_ >= 0 && rotated_ % 2 == 0, "rotary_embedding_dim is ", rotated_,
          "; it must be even and not negative");
  sizes_ = projection_sizes(node, heads_);
}

void ProjectedAttention::attend_projected(Context& context, const Tensor& input, const Tensor& weights, Type type,
                                          const std::function<ProjectedHeads()>& make) const {
  const Shape& shape = input.shape;
  require(shape.rank() == 3, "input has shape ", shape.str(), "; three dimensions are wanted");
  const int64_t batch = shape[0], queries = shape[1];
  const ProjectionWidths widths = widths_of(sizes_, heads_, weights);
  const int64_t size = widths.keys / heads_, value_size = widths.values / heads_;
  require(size > 0, "weights ", weights.shape.str(), " make heads of no size");

  const Tensor y = context.output(0, {batch, queries, widths.values});
  const auto [k_cache, v_cache] = caches(context, type, batch, queries, size, value_size);
  if (batch == 0) return;
  auto [q, k, v] = make();
  if (rotary_) {
    const int64_t rotated = rotated_ ? rotated_ : size;
    require(rotated <= size && rotated % 2 == 0, rotated, " values of a head are to be rotated, in pairs; a head has ",
            size);
    rotate_heads(context, type, q, k, rotated, k_cache.past_rows);
  }
  HeadMoves moves(context, type);
  moves.append(k, nullptr, k_cache);
  moves.append(v, nullptr, v_cache);
  moves.run();

  Attend problem;
  problem.type = type, problem.tf32 = tf32_;
  problem.batch = batch, problem.heads = problem.kv_heads = heads_;
  problem.queries = queries, problem.keys = k.rows, problem.head_size = size, problem.value_size = value_size;
  problem.q = q.view, problem.k = k.view, problem.v = v.view;
  problem.y = heads_in_rows(y.data, batch, queries, heads_, value_size, widths.values).view;
  problem.scale = scale_of(scale_, size);
  if (causal_) problem.visible.after = 0;
  problem.visible.offset = k.rows - queries;
  add_masks(context, problem, context.find_input(slots_.mask), context.find_input(slots_.score_bias), filter_);
  if (y.count() > 0) attend(context, problem);
}

// past and present are [2, batch, head, row, size], keys before values.
ProjectedAttention::Caches ProjectedAttention::caches(Context& context, Type type, int64_t batch, int64_t rows,
                                                      int64_t size, int64_t value_size) const {
  const Tensor* past = context.find_input(slots_.past);
  const bool wanted = context.wants_output(1);
  if (!past && !wanted) return {};
  require(size == value_size, "past and present want heads of keys and values of one size; they are ", size, " and ",
          value_size);
  int64_t past_capacity = 0, past_rows = 0, capacity = rows;
  if (past) {
    const Shape& shape = past->shape;
    require(shape.rank() == 5 && shape == Shape{2, batch, heads_, shape.rank() == 5 ? shape[3] : 0, size},
            "past has shape ", shape.str(), "; [2,", batch, ",", heads_, ",rows,", size, "] is wanted");
    past_rows = past_capacity = shape[3];
    capacity += past_rows;
    if (shares_) {
      const Tensor* length = context.find_input(slots_.past_length);
      require(length, "past_sequence_length is wanted where past and present share their buffer");
      past_rows = past_rows_of(*length, rows, past_capacity);
      capacity = past_capacity;
    }
  }
  void* const present = wanted ? context.output(1, {2, batch, heads_, capacity, size}).data : nullptr;
  const int64_t one = batch * heads_ * size;
  const auto cache = [&](int64_t part) {
    return Cache{offset(past ? past->data : nullptr, part * one * past_capacity, type), past_rows, past_capacity,
                 offset(present, part * one * capacity, type), capacity};
  };
  return {cache(0), cache(1)};
}

std::vector<OpRow> projected_attention_rows() {
  const Types types = kHalves | Types{Type::f32};
  return {{.domain = kMicrosoft,
           .name = "Attention",
           .since = 1,
           .types = {in(kInput, types), in(kMask, {Type::i32}), in(kPastLength, {Type::i32})},
           .make = make<Attention>,
           .host_inputs = {kPastLength},
           .may_reuse = {{kPast, 1}}}};
}

}  // namespace encore::ops
