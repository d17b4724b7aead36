// com.microsoft's QOrderedAttention: all of its matrices are 8-bit integers, each with a scale.
#include <cmath>

#include "device/divide.h"
#include "device/launch.h"
#include "device/transform.h"
#include "ops/attention/dense/attend_int8.h"
#include "ops/attention/inputs/projection.h"
#include "ops/quantize/integer_product.h"
#include "ops/quantize/tile_order.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::Pack;

enum Input {
  kInput,
  kInputScale,
  kResultScales,  // of queries, keys and values, as all that there are three of
  kWeights = kResultScales + 3,
  kWeightScales = kWeights + 3,
  kBiases = kWeightScales + 3,
  kScoreScale = kBiases + 3,
  kProbabilityScale,
  kOutputScale,
  kMask,
  kPast,
  kScoreBias
};
constexpr int kParts = 3;

// y = alpha * scales * sums + bias / the scale of y, for kPack neighbours in a row of queries, keys or values.
template <int kPack>
struct QuantizeSums {
  struct Part {
    const float *scales, *bias;
    float alpha, inverse;
    bool one_scale;
  };
  const int32_t* sums;
  int8_t* y;
  Part parts[kParts];
  Divider packs, rows;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack, row;
    const Part& part = parts[rows(packs(i, pack), row)];
    const auto sum = device::load_pack<kPack>(sums + i * kPack, true);
    const float* const scales = part.scales + (part.one_scale ? 0 : pack * kPack);
    const float* const bias = part.bias + pack * kPack;
    Pack<int8_t, kPack> made;
    UNROLL for (int k = 0; k < kPack; ++k) made.at[k] =
        to_int8(part.alpha * scales[part.one_scale ? 0 : k] * float(sum.at[k]) + bias[k] * part.inverse);
    device::store_pack(y + i * kPack, made, true);
  }
};

class QOrderedAttention final : public Op {
 public:
  explicit QOrderedAttention(const NodeInfo& node)
      : heads_(node.get_int("num_heads", 0)), causal_(node.get_int("unidirectional", 0) == 1) {
    require(heads_ > 0, "num_heads is ", heads_, "; it must be above zero");
    sizes_ = projection_sizes(node, heads_);
    require(sizes_.empty() || sizes_[2] == sizes_[0], "qkv_hidden_sizes are not the same");
    const auto only = [&](const char* attribute, TileOrder order) {
      if (tile_order_of(node, attribute, order) != order) fail(Code::not_supported, attribute, " must be ", int(order));
    };
    only("order_input", TileOrder::rows);
    only("order_weight", TileOrder::columns);
    only("order_output", TileOrder::rows);
    if (node.has_input(kPast) || node.has_input(kScoreBias))
      fail(Code::not_supported, "past and attention_bias are not supported");
    if (!node.has_input(kScoreScale) || !node.has_input(kProbabilityScale))
      fail(Code::not_supported, "scale_QKT_gemm and scale_QKT_softmax are wanted");
  }

  bool prepack(int input, const Tensor& constant, Prepack& prepack) override {
    const int part = input - kWeights;
    if (part < 0 || part >= kParts || constant.shape.rank() != 2 || constant.count() == 0) return false;
    constants_[part].keep_rows(prepack, constant, Shape{}, constant.shape[1], constant.shape[0]);
    return true;
  }

  void run(Context& context) const override {
    const Tensor& input = context.input(kInput);
    require(input.shape.rank() == 3, "input has shape ", input.shape.str(), "; three dimensions are wanted");
    const int64_t batch = input.shape[0], rows = input.shape[1], depth = input.shape[2];
    const Shape first = weight(context, 0).shape;
    require(first.rank() == 2, "Q_weight has shape ", first.str(), "; a matrix is wanted");
    const int64_t width = first[1];
    require(width > 0 && width % heads_ == 0 && (sizes_.empty() || sizes_[0] == width), "Q_weight has shape ",
            first.str(), "; the ", heads_, " heads do not divide it, or it is not what qkv_hidden_sizes says");
    for (int part = 0; part < kParts; ++part) check(context, part, depth, width);

    const int64_t size = width / heads_, all_rows = checked_product(batch, rows),
                  each = checked_product(all_rows, width);
    const float input_scale = host_scale(context, kInputScale, "scale_input");
    const float score_scale = host_scale(context, kScoreScale, "scale_QKT_gemm");
    const float probability = host_scale(context, kProbabilityScale, "scale_QKT_softmax");
    const float output_scale = host_scale(context, kOutputScale, "scale_values_gemm");
    float scales[kParts];
    for (int part = 0; part < kParts; ++part)
      scales[part] = host_scale(context, kResultScales + part, kScaleNames[part]);
    const Int8Mask mask = mask_of(context, batch, rows);
    const Tensor y = context.output(0, {batch, rows, width});
    if (y.count() == 0) return;

    const int8_t* const made = project(context, input, all_rows, depth, width, input_scale, scales);
    attend_int8(context, {.q = made,
                          .k = made + each,
                          .v = made + 2 * each,
                          .y = y.as<int8_t>(),
                          .batch = batch,
                          .heads = heads_,
                          .rows = rows,
                          .size = size,
                          .to_score = float(double(scales[0]) * scales[1] / score_scale),
                          .power = float(double(score_scale) / std::sqrt(double(size))),
                          .probability = probability,
                          .to_y = float(double(probability) * scales[2] / output_scale),
                          .mask = mask});
  }

 private:
  static constexpr const char* kScaleNames[kParts] = {"scale_Q_gemm", "scale_K_gemm", "scale_V_gemm"};
  static float host_scale(Context& context, int input, const char* what) {
    const Tensor& tensor = context.input(input);
    require(tensor.count() == 1, what, " has ", tensor.count(), " values; it must have one");
    const float scale = *tensor.as<const float>();
    require(scale > 0 && std::isfinite(scale), what, " is ", scale, "; it must be above zero");
    return scale;
  }
  const Tensor& weight(Context& context, int part) const {
    return constants_[part] ? constants_[part].like : context.input(kWeights + part);
  }
  void check(Context& context, int part, int64_t depth, int64_t width) const {
    const Shape &shape = weight(context, part).shape, &bias = context.input(kBiases + part).shape;
    const Tensor& scale = context.input(kWeightScales + part);
    const char name = "QKV"[part];
    require(shape == Shape{depth, width}, name, "_weight has shape ", shape.str(), "; [", depth, ",", width,
            "] is wanted");
    require(bias == Shape{width}, name, "_bias has shape ", bias.str(), "; [", width, "] is wanted");
    require(scale.count() == 1 || scale.shape == Shape{width}, "scale_", name, "_weight has shape ", scale.shape.str(),
            "; one value or [", width, "] is wanted");
  }

  // Queries, keys and values, one after another, each [rows, width].
  const int8_t* project(Context& context, const Tensor& input, int64_t rows, int64_t depth, int64_t width,
                        float input_scale, const float (&scales)[kParts]) const {
    const int64_t each = rows * width, count = checked_product(kParts, each);
    auto* const sums = static_cast<int32_t*>(context.scratch(size_t(checked_product(count, sizeof(int32_t)))));
    auto* const made = static_cast<int8_t*>(context.scratch(size_t(count)));
    const auto side = [&](const Tensor& tensor, int64_t of_rows) {
      void* const into = has_form(tensor, depth) ? nullptr : context.scratch(integer_rows_bytes(1, of_rows, depth));
      return pack_rows(context.stream(), tensor, Shape{}, of_rows, depth, into, nullptr);
    };
    IntegerProduct product;
    product.a = side(input, rows);
    product.row_step = width;
    product.matrix_step = each;
    for (int part = 0; part < kParts; ++part) {
      product.b = constants_[part] ? constants_[part].rows : side(context.input(kWeights + part), width);
      product.finish.y = sums + part * each;
      multiply(context, product);
    }
    const auto quantize = [&]<int kPack> {
      QuantizeSums<kPack> kernel{sums, made, {}, Divider(width / kPack, count), Divider(rows, count)};
      for (int part = 0; part < kParts; ++part) {
        const Tensor& of_weight = context.input(kWeightScales + part);
        kernel.parts[part] = {of_weight.as<const float>(), context.input(kBiases + part).as<const float>(),
                              input_scale / scales[part], 1.f / scales[part], of_weight.count() == 1};
      }
      device::for_each_index(context.stream(), count / kPack, kernel);
    };
    if (width % 4 == 0)
      quantize.template operator()<4>();
    else
      quantize.template operator()<1>();
    return made;
  }

  Int8Mask mask_of(Context& context, int64_t batch, int64_t rows) const {
    Int8Mask mask;
    mask.causal = causal_;
    const Tensor* given = context.find_input(kMask);
    if (!given) return mask;
    const Shape& shape = given->shape;
    const auto* const values = given->as<const int32_t>();
    if (shape == Shape{batch} || shape == Shape{checked_product(2, batch)}) {
      mask.ends = values;
      if (shape[0] != batch) mask.starts = values + batch;
    } else if (shape == Shape{batch, rows}) {
      mask.flags = values;
      mask.batch = rows;
    } else if (shape == Shape{batch, rows, rows}) {
      mask.flags = values;
      mask.batch = rows * rows, mask.query = rows;
    } else {
      require(shape.rank() == 4 && shape[0] == batch && shape[1] == 1 && shape[2] == shape[3] && shape[3] >= rows,
              "mask_index has shape ", shape.str(), "; [", batch, "], [", 2 * batch, "], [", batch, ",", rows, "], [",
              batch, ",", rows, ",", rows, "] or a square of at least as many for each batch is wanted");
      mask.flags = values;
      mask.batch = shape[2] * shape[3], mask.query = shape[3];
    }
    return mask;
  }

  int64_t heads_;
  bool causal_;
  std::vector<int64_t> sizes_;
  ConstantSide constants_[kParts];  // of the weights, those that are
};

}  // namespace

std::vector<OpRow> ordered_attention_rows() {
  const Types whole{Type::i8}, scale{Type::f32};
  return {{.domain = kMicrosoft,
           .name = "QOrderedAttention",
           .since = 1,
           .types = {in(kInput, whole), in(kInputScale, scale), in(kMask, {Type::i32})},
           .make = make<QOrderedAttention>,
           .host_inputs = {kInputScale, kResultScales, kResultScales + 1, kResultScales + 2, kScoreScale,
                           kProbabilityScale, kOutputScale}}};
}

}  // namespace encore::ops
