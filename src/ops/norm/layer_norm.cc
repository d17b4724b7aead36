// LayerNormalization, and the kinds without centring: RMSNormalization and SimplifiedLayerNormalization.
#include "ops/norm/row_norm.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

enum class Kind { layer, simplified, root_mean_square };

template <Kind kKind>
class LayerNorm : public Op {
 public:
  explicit LayerNorm(const NodeInfo& node)
      : axis_(node.get_int("axis", -1)), epsilon_(node.get_float("epsilon", 1e-5f)) {
    const int64_t stash = node.get_int("stash_type", 1);
    if (stash != int64_t(Type::f32) && stash != int64_t(Type::f64))
      fail(Code::not_supported, "stash_type is ", stash, "; it must be 1 (float) or 11 (double)");
    if (stash == int64_t(Type::f64) && node.input_type(0) != Type::f64)
      fail(Code::not_supported, "stash_type 11 (double) needs a double input; this one is ",
           device::name(node.input_type(0)));
    const Type x = node.input_type(0), scale = node.input_type(1);
    if (!can_normalize(x, scale))
      fail(Code::not_supported, "an input of type ", device::name(x), " with a scale of type ", device::name(scale));
  }

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &scale = context.input(1);
    const int rank = x.shape.rank(), axis = checked_axis(axis_, rank);
    RowNorm norm{x.shape.count(0, axis), x.shape.count(axis, rank), x.data};
    require(scale.count() == norm.width, "scale ", scale.shape.str(), " does not cover the normalised dimensions of ",
            x.shape.str(), " from axis ", axis, " on");
    norm.gamma = scale.data;
    if (const Tensor* bias = kKind == Kind::layer ? context.find_input(2) : nullptr) {
      require(bias->count() == norm.width && bias->type == scale.type, "bias ", bias->shape.str(),
              " does not fit scale ", scale.shape.str());
      norm.beta = bias->data;
    }
    norm.y = context.output(0, x.shape).data;
    norm.centred = kKind == Kind::layer;
    norm.epsilon = epsilon_;
    Shape reduced = x.shape;
    for (int i = axis; i < rank; ++i) reduced = reduced.with(i, 1);
    const auto statistics = [&](int output) -> void* {
      if (output >= context.output_count() || !context.wants_output(output)) return nullptr;
      const Tensor out = context.output(output, reduced);
      norm.double_statistics = out.type == Type::f64;
      return out.data;
    };
    if (kKind == Kind::layer) norm.mean = statistics(1);
    if (kKind != Kind::root_mean_square) norm.inverse_deviation = statistics(kKind == Kind::layer ? 2 : 1);
    normalize_rows(context.stream(), norm, x.type, scale.type);
  }

 private:
  int64_t axis_;
  float epsilon_;
};

}  // namespace

std::vector<OpRow> layer_norm_rows() {
  const std::vector<TypeRule> types = {in(0, kFloats), in(1, kFloats)};
  return {
      // Models of before opset 17 have it too, in ai.onnx since version 1.
      {.name = "LayerNormalization", .since = 1, .types = types, .make = make<LayerNorm<Kind::layer>>},
      {.name = "SimplifiedLayerNormalization", .since = 1, .types = types, .make = make<LayerNorm<Kind::simplified>>},
      {.name = "RMSNormalization", .since = 23, .types = types, .make = make<LayerNorm<Kind::root_mean_square>>},
  };
}

}  // namespace encore::ops
