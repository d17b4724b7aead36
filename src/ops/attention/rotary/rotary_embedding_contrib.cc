// com.microsoft's RotaryEmbedding, where one position may stand for all, and MRotaryEmbedding, with three positions of
// each token.
#include "ops/attention/rotary/rotary_embedding.h"
#include "ops/choice.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

constexpr Types kRotaryTypes{Type::f32, Type::f16, Type::bf16};

class ContribRotary : public Op {
 public:
  explicit ContribRotary(const NodeInfo& node) : attributes_(node, 2) {
    require(attributes_.rotated == 0 || attributes_.heads > 0, "num_heads is wanted with rotary_embedding_dim");
  }

 protected:
  // All but the positions.
  Rotation rotation(Context& context) const {
    const Tensor &x = context.input(0), &cos = context.input(2), &sin = context.input(3);
    const Shape& shape = x.shape;
    const auto& [interleaved, rotated, heads] = attributes_;
    require(shape.rank() == 3 || shape.rank() == 4, "the input has shape ", shape.str(), "; it must have rank 3 or 4");
    require(cos.shape.rank() == 2 && sin.shape == cos.shape, "cos_cache ", cos.shape.str(), " and sin_cache ",
            sin.shape.str(), " must be of one shape, [positions, half of what is rotated]");
    Rotation r;
    r.flat = shape.rank() == 3;
    r.batch = shape[0];
    r.rows = shape[r.flat ? 1 : 2];
    // Without a number of heads they are as long as the caches say.
    const int64_t half = cos.shape[1], width = r.flat ? shape[2] : shape[3];
    r.size = !r.flat ? width : heads > 0 ? width / heads : checked_product(half, 2);
    require(r.size > 0, "the input ", shape.str(), " has heads of no size");
    r.heads = r.flat ? width / r.size : shape[1];
    require(!r.flat || r.heads * r.size == width, "the input ", shape.str(), " cannot be divided into heads of ",
            r.size);
    r.rotated = rotated ? rotated : r.size;
    require(r.rotated <= r.size && r.rotated % 2 == 0 && half == r.rotated / 2, r.rotated,
            " values of a head are to be rotated, in pairs; a head has ", r.size, ", and cos_cache is ",
            cos.shape.str());
    r.type = x.type;
    r.x = x.data;
    r.interleaved = interleaved;
    r.cos = cos.data;
    r.sin = sin.data;
    r.positions = cos.shape[0];
    return r;
  }
  static void finish(Context& context, Rotation& r) {
    const Tensor& x = context.input(0);
    const Tensor y = context.output(0, x.shape);
    if (y.count() == 0) return;
    require(r.positions > 0, "the caches have no positions");
    r.y = y.data;
    rotate(context, r);
  }

  RotaryAttributes attributes_;
};

class OneStream : public ContribRotary {
 public:
  using ContribRotary::ContribRotary;
  void run(Context& context) const override {
    Rotation r = rotation(context);
    const Tensor& ids = context.input(1);
    r.one_id = ids.shape == Shape{1};
    require(r.one_id || ids.shape == Shape{r.batch, r.rows}, "position_ids has shape ", ids.shape.str(), "; [1] or [",
            r.batch, ",", r.rows, "] is wanted");
    r.position_ids = ids.as<const int64_t>();
    finish(context, r);
  }
};

class ThreeStreams : public ContribRotary {
 public:
  explicit ThreeStreams(const NodeInfo& node)
      : ContribRotary(node), alternate_(read_flag(node, "mrope_layout", false)), scale_(node.get_float("scale", 1)) {
    const auto sections = node.find_ints("mrope_section");
    require(sections && sections->size() == 3, "mrope_section is wanted, with three numbers of pairs");
    for (int i = 0; i < 3; ++i) {
      pairs_[i] = (*sections)[size_t(i)];
      require(pairs_[i] >= 0 && pairs_[i] < kIntCap, "mrope_section has ", pairs_[i], " pairs");
    }
  }
  void run(Context& context) const override {
    require(attributes_.heads > 0 || context.input(0).shape.rank() == 4, "num_heads is wanted for an input of rank 3");
    Rotation r = rotation(context);
    require(!r.flat || r.heads == attributes_.heads, "the input ", context.input(0).shape.str(),
            " cannot be divided into ", attributes_.heads, " heads");
    const Tensor& ids = context.input(1);
    require(ids.shape == Shape{3, r.batch, r.rows}, "position_ids has shape ", ids.shape.str(), "; [3,", r.batch, ",",
            r.rows, "] is wanted");
    require(pairs_[0] + pairs_[1] + pairs_[2] == r.rotated / 2, "the numbers of mrope_section add up to ",
            pairs_[0] + pairs_[1] + pairs_[2], ", and there are ", r.rotated / 2, " pairs to rotate");
    r.position_ids = ids.as<const int64_t>();
    r.streams = {3, {int(pairs_[0]), int(pairs_[1]), int(pairs_[2])}, alternate_, scale_};
    finish(context, r);
  }

 private:
  bool alternate_;
  int64_t pairs_[3];
  float scale_;
};

}  // namespace

std::vector<OpRow> rotary_embedding_contrib_rows() {
  const std::vector<TypeRule> rules = {in(0, kRotaryTypes), in(1, {Type::i64}), in(2, kRotaryTypes),
                                       in(3, kRotaryTypes)};
  return {{.domain = kMicrosoft,
           .name = "RotaryEmbedding",
           .since = 1,
           .types = rules,
           .make = make<OneStream>,
           .may_reuse = {{0, 0}}},
          {.domain = kMicrosoft,
           .name = "MRotaryEmbedding",
           .since = 1,
           .types = rules,
           .make = make<ThreeStreams>,
           .may_reuse = {{0, 0}}}};
}

}  // namespace encore::ops
