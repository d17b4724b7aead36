// LayerNormalization, and the kinds without centring: RMSNormalization and SimplifiedLayerNormalization.
#include <algorithm>

#include "ops/norm/row_norm.h"
#include "ops/registry.h"
#include "ops/shape/movement.h"

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
    if (!can_normalize({x, scale, node.output_type(0)}))
      fail(Code::not_supported, "an input of type ", device::name(x), " with a scale of type ", device::name(scale));
  }

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &scale = context.input(1);
    const int rank = x.shape.rank(), axis = checked_axis(axis_, rank);
    RowNorm norm{x.shape.count(0, axis), x.shape.count(axis, rank), x.data};
    const Tensor* bias = kKind == Kind::layer ? context.find_input(2) : nullptr;
    const auto check_broadcast = [&](const Tensor& parameter, const char* what) {
      require(broadcasts_to(parameter.shape, x.shape), what, " ", parameter.shape.str(), " cannot be broadcast to X ",
              x.shape.str());
    };
    check_broadcast(scale, "scale");
    if (bias) {
      check_broadcast(*bias, "bias");
      require(bias->type == scale.type, "bias has type ", device::name(bias->type), ", scale ",
              device::name(scale.type));
    }
    const Tensor y = context.output(0, x.shape);
    norm.y = y.data;
    if (const Tensor* const behind = context.find_input(kBehindNorm)) {
      require(behind->type == y.type && behind->shape == x.shape, "what is added to the result has type ",
              device::name(behind->type), " and shape ", behind->shape.str(), "; the result has type ",
              device::name(y.type), " and shape ", x.shape.str());
      norm.behind = behind->data;
    }
    norm.centred = kKind == Kind::layer;
    norm.epsilon = epsilon_;
    Shape reduced = x.shape;
    for (int i = axis; i < rank; ++i) reduced = reduced.with(i, 1);
    const auto statistics = [&](int output) -> void* {
      if (!context.wants_output(output)) return nullptr;
      const Tensor out = context.output(output, reduced);
      norm.double_statistics = out.type == Type::f64;
      return out.data;
    };
    norm.gamma = rows_of(context, scale, x.shape, axis);
    if (bias) norm.beta = rows_of(context, *bias, x.shape, axis);
    if (kKind == Kind::layer) norm.mean = statistics(1);
    if (kKind != Kind::root_mean_square) norm.inverse_deviation = statistics(kKind == Kind::layer ? 2 : 1);
    require(norm.width > 0 || norm.rows == 0 || (!norm.mean && !norm.inverse_deviation), "X ", x.shape.str(),
            " has rows of no values from axis ", axis, " on, which have no mean and no deviation");
    normalize_rows(context.stream(), norm, {x.type, scale.type, y.type});
  }

 private:
  // The parameter's values for the rows of x. They are there already unless it is broadcast within a row, or to some of
  // the rows.
  static RowNorm::Parameter rows_of(Context& context, const Tensor& parameter, const Shape& x, int axis) {
    const int lead = x.rank() - parameter.shape.rank(), inner = std::max(axis - lead, 0);
    const int64_t rows = x.count(0, axis), width = x.count(axis, x.rank());
    const int64_t own_rows = parameter.shape.count(0, inner),
                  own_width = parameter.shape.count(inner, parameter.shape.rank());
    const int64_t step = own_rows == 1 ? 0 : width;
    if (own_width == width && (own_rows == 1 || own_rows == rows)) return {parameter.data, step};
    Shape shape = x;
    for (int i = 0; own_rows == 1 && i < axis; ++i) shape = shape.with(i, 1);
    void* expanded = context.scratch(size_t(shape.count()) * device::size_bytes(parameter.type));
    expand(context.stream(), parameter, shape, expanded);
    return {expanded, step};
  }

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
