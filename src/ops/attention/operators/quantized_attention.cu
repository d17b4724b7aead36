// com.microsoft's QAttention: the projection is one of bytes.
#include "device/divide.h"
#include "device/launch.h"
#include "ops/attention/operators/projected_attention.h"
#include "ops/dispatch.h"
#include "ops/quantize/integer_product.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

enum { kInput, kWeights, kBias, kInputScale, kWeightScale, kMask, kInputZero, kWeightZero, kPast };

template <class T>
struct ScaleSums {
  const int32_t* sums;
  T* y;
  const T *bias, *input_scale;
  PerRow weight_scale;
  device::Divider by_columns;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t column;
    by_columns(i, column);
    y[i] = T(float(sums[i]) * (float(*input_scale) * weight_scale.at(0, column)) + float(bias[column]));
  }
};

class QAttention final : public ProjectedAttention {
 public:
  explicit QAttention(const NodeInfo& node)
      : ProjectedAttention(node, {kMask, kPast}),
        input_zero_known_(is_constant_zero(node, kInputZero)),
        weight_zero_known_(is_constant_zero(node, kWeightZero)) {
    if (node.get_int("past_present_share_buffer", 0) != 0)
      fail(Code::not_supported, "past_present_share_buffer is not supported: nothing tells how much is past");
  }

  bool prepack(int input, const Tensor& constant, Prepack& prepack) override {
    if (input != kWeights || constant.count() == 0 || constant.shape.rank() != 2) return false;
    constant_.keep_columns(prepack, constant, Shape{}, constant.shape[1], constant.shape[0]);
    return true;
  }

  void run(Context& context) const override {
    const Tensor& input = context.input(kInput);
    const Tensor& weights = constant_ ? constant_.like : context.input(kWeights);
    const Tensor& bias = context.input(kBias);
    attend_projected(context, input, weights, bias.type, [&] { return product(context, input, weights, bias); });
  }

 private:
  ProjectedHeads product(Context& context, const Tensor& input, const Tensor& weights, const Tensor& bias) const {
    const int64_t batch = input.shape[0], queries = input.shape[1], depth = input.shape[2], columns = weights.shape[1];
    const int64_t rows = checked_product(batch, queries), count = checked_product(rows, columns);
    require(weights.shape[0] == depth, "input ", input.shape.str(), " and weight ", weights.shape.str(),
            " don't fit together");
    const Tensor &input_scale = context.input(kInputScale), &weight_scale = context.input(kWeightScale);
    require(bias.shape == Shape{columns} && input_scale.count() == 1, "bias has shape ", bias.shape.str(),
            " and input_scale ", input_scale.shape.str(), "; [", columns, "] and one number are wanted");
    void* const all = context.scratch(device::size_bytes(bias.type, count));
    if (count > 0) {
      auto* const sums = static_cast<int32_t*>(context.scratch(size_t(count) * sizeof(int32_t)));
      multiply_into(context, input, weights, rows, sums);
      const PerRow scales = per_row(weight_scale, 1, columns, "weight_scale");
      dispatch(TypeList<float, Half>{}, bias.type, [&]<class T> {
        device::for_each_index(context.stream(), count,
                               ScaleSums<T>{sums, static_cast<T*>(all), bias.as<const T>(), input_scale.as<const T>(),
                                            scales, device::Divider(columns, count)});
      });
    }
    return heads_in(all, batch, queries, weights, bias.type);
  }

  void multiply_into(Context& context, const Tensor& input, const Tensor& weights, int64_t rows, int32_t* y) const {
    const int64_t depth = weights.shape[0], columns = weights.shape[1];
    IntegerProduct product;
    product.finish.y = y;
    product.a_zero = ZeroPoint::of(context.find_input(kInputZero), input.type, 1, rows, input_zero_known_);
    product.b_zero = ZeroPoint::of(context.find_input(kWeightZero), weights.type, 1, columns, weight_zero_known_);
    const auto sums = [&](const ZeroPoint& other, int64_t stored) {
      return other.known_zero() ? nullptr : static_cast<int32_t*>(context.scratch(size_t(stored) * sizeof(int32_t)));
    };
    Tensor flat = input;
    flat.shape = Shape{rows, depth};
    void* const into = has_form(flat, depth) ? nullptr : context.scratch(integer_rows_bytes(1, rows, depth));
    product.a = pack_rows(context.stream(), flat, Shape{}, rows, depth, into, sums(product.b_zero, rows));
    if (constant_)
      product.b = constant_.rows;
    else
      product.b = pack_columns(context.stream(), weights, Shape{}, columns, depth,
                               context.scratch(integer_rows_bytes(1, stored_rows(columns), depth)),
                               sums(product.a_zero, stored_rows(columns)));
    product.row_step = columns;
    product.matrix_step = rows * columns;
    multiply(context, product);
  }

  ProjectedHeads heads_in(const void* all, int64_t batch, int64_t rows, const Tensor& weights, Type type) const {
    const ProjectionWidths widths = widths_of(sizes_, heads_, weights);
    return split_projection(all, batch, rows, heads_, widths, type);
  }

  bool input_zero_known_, weight_zero_known_;
  ConstantSide constant_;  // the weights, if they are one
};

}  // namespace

std::vector<OpRow> quantized_attention_rows() {
  const Types bytes{Type::i8, Type::u8}, types{Type::f32, Type::f16};
  return {{.domain = kMicrosoft,
           .name = "QAttention",
           .since = 1,
           .types = {in(kInput, bytes), in(kWeights, bytes), in(kBias, types), in(kMask, {Type::i32})},
           .make = make<QAttention>}};
}

}  // namespace encore::ops
