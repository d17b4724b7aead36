// com.microsoft's PackedAttention and PackedMultiHeadAttention: sequences without padding. They get it for the
// attention, which does not look at it, and lose it again.
#include <cmath>

#include "ops/attention/inputs/key_mask.h"
#include "ops/attention/inputs/padding.h"
#include "ops/attention/inputs/projection.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

class Packed : public Op {
 protected:
  explicit Packed(const NodeInfo& node)
      : heads_(node.get_int("num_heads", 0)), scale_(node.get_float("scale", 0)), tf32_(node.settings.use_tf32) {
    require(heads_ > 0, "num_heads is ", heads_, "; it must be above zero");
    require(std::isfinite(scale_), "scale is ", scale_, "; it must be finite");
  }

  // What is of all heads in rows of tokens, as if of one batch; `at` is where the offsets are among the inputs, before
  // the sequences' ends and the bias of scores.
  void attend_packed(Context& context, Type type, ProjectedHeads heads, const void* bias, int at) const {
    const Tensor &offsets = context.input(at), &ends = context.input(at + 1);
    const int64_t tokens = heads.q.rows, size = heads.q.size, value_size = heads.v.size;
    const Shape& shape = offsets.shape;
    require(shape.rank() == 2 && shape.count() >= tokens, "token_offset has shape ", shape.str(), "; [batch, row] of ",
            tokens, " tokens at least is wanted");
    const int64_t batch = shape[0], rows = shape[1];
    require(ends.shape == Shape{batch + 1}, "cumulative_sequence_length has shape ", ends.shape.str(), "; [", batch + 1,
            "] is wanted");
    const Tensor y = context.output(0, {tokens, heads_ * value_size});
    if (y.count() == 0) return;

    const Sequences sequences{ends.as<const int32_t>(), tokens};
    HeadMoves moves(context, type, sequences);
    const int64_t width = heads_ * size;
    int64_t first = 0;
    for (Heads* one : {&heads.q, &heads.k, &heads.v}) {
      one->batch = batch, one->rows = rows;
      one->view.batch = 0;
      if (bias)
        moves.add_bias(*one, offset(bias, first, type));
      else
        moves.copy(*one);
      first += width;
    }
    moves.run();

    Attend problem;
    problem.type = type, problem.tf32 = tf32_;
    problem.batch = batch, problem.heads = problem.kv_heads = heads_;
    problem.queries = problem.keys = rows, problem.head_size = size, problem.value_size = value_size;
    problem.q = heads.q.view, problem.k = heads.k.view, problem.v = heads.v.view;
    problem.scale = scale_of(scale_, size);
    problem.visible.lengths = lengths_of(context, sequences, batch, rows);
    add_masks(context, problem, nullptr, context.find_input(at + 2), 0);
    const int64_t all = checked_product(batch, rows), y_width = heads_ * value_size;
    void* const padded = context.scratch(device::size_bytes(type, checked_product(all, y_width)));
    problem.y = heads_in_rows(padded, batch, rows, heads_, value_size, y_width).view;
    attend(context, problem);
    move_rows(context, {padded, y.data, offsets.as<const int32_t>(), tokens, all, tokens, y_width, type});
  }

  int64_t heads_;
  float scale_;
  bool tf32_;
};

class PackedAttention final : public Packed {
 public:
  explicit PackedAttention(const NodeInfo& node) : Packed(node), sizes_(projection_sizes(node, heads_)) {}

  void run(Context& context) const override {
    const Tensor &input = context.input(0), &weights = context.input(1);
    require(input.shape.rank() == 2, "input has shape ", input.shape.str(), "; two dimensions are wanted");
    require(widths_of(sizes_, heads_, weights).keys > 0, "weights ", weights.shape.str(), " make heads of no size");
    attend_packed(context, input.type,
                  project(context, input, 1, input.shape[0], weights, &context.input(2), heads_, sizes_, tf32_),
                  nullptr, 3);
  }

 private:
  std::vector<int64_t> sizes_;
};

class PackedMultiHeadAttention final : public Packed {
 public:
  explicit PackedMultiHeadAttention(const NodeInfo& node) : Packed(node) {}

  void run(Context& context) const override {
    const Tensor &query = context.input(0), *key = context.find_input(1), *value = context.find_input(2);
    const Shape& shape = query.shape;
    require(!key == !value, "key and value are wanted together");
    ProjectedHeads heads;
    if (key) {
      const auto take = [&](const Tensor& tensor) {
        const Shape& one = tensor.shape;
        require(one.rank() == 2 && one[0] == shape[0] && one[1] % heads_ == 0, "query has shape ", shape.str(),
                ", key ", key->shape.str(), " and value ", value->shape.str(), "; [tokens, width] is wanted, of which ",
                heads_, " heads divide the width");
        return heads_in_rows(tensor.data, 1, one[0], heads_, one[1] / heads_, one[1]);
      };
      require(key->shape == shape, "query has shape ", shape.str(), " and key ", key->shape.str(),
              "; they must be alike");
      heads = {take(query), take(*key), take(*value)};
    } else {
      require(shape.rank() == 4 && shape[1] == heads_ && shape[2] == 3, "query has shape ", shape.str(), "; [tokens, ",
              heads_, ", 3, size] is wanted where there is no key");
      const auto part = [&](int64_t n) {
        return heads_in_rows(offset(query.data, n * shape[3], query.type), 1, shape[0], heads_, shape[3],
                             shape.count(1, 4), 3 * shape[3]);
      };
      heads = {part(0), part(1), part(2)};
    }
    require(heads.q.size > 0, "query ", shape.str(), " has heads of no size");
    const Tensor* bias = context.find_input(3);
    const int64_t width = heads_ * (2 * heads.q.size + heads.v.size);
    require(!bias || bias->shape == Shape{width}, "bias has shape ", bias ? bias->shape.str() : "", "; [", width,
            "] is wanted");
    attend_packed(context, query.type, heads, bias ? bias->data : nullptr, 4);
  }
};

}  // namespace

std::vector<OpRow> packed_attention_rows() {
  const Types types{Type::f32, Type::f16}, whole{Type::i32};
  return {{.domain = kMicrosoft,
           .name = "PackedAttention",
           .since = 1,
           .types = {in(0, types), in(3, whole), in(4, whole)},
           .make = make<PackedAttention>},
          {.domain = kMicrosoft,
           .name = "PackedMultiHeadAttention",
           .since = 1,
           .types = {in(0, types), in(4, whole), in(5, whole)},
           .make = make<PackedMultiHeadAttention>}};
}

}  // namespace encore::ops
