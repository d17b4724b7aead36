// com.microsoft's QOrderedLongformerAttention: projections of 8-bit integers, rounded to 8 bits, around an attention of
// halves.
#include <cmath>

#include "device/divide.h"
#include "device/launch.h"
#include "device/transform.h"
#include "ops/attention/longformer/longformer.h"
#include "ops/quantize/integer_product.h"
#include "ops/quantize/tile_order.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::Half;
using device::Pack;

enum Input {
  kInput,
  kInputScale,
  kWeights,
  kWeightScale,
  kBias,
  kBiasScale,
  kResultScale,
  kMask,
  kGlobalWeights,
  kGlobalWeightScale,
  kGlobalBias,
  kGlobalResultScale,
  kGlobal,
  kOutputScale
};

// What 8 bits make of alpha * sums + bias, in units of the scale; for kPack neighbours of a row.
template <int kPack>
struct RoundSums {
  const int32_t* sums;
  const float* bias;  // in these units
  Half* y;
  float alpha, scale;
  Divider packs;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack;
    packs(i, pack);
    const auto sum = device::load_pack<kPack>(sums + i * kPack, true);
    Pack<Half, kPack> made;
    UNROLL for (int k = 0; k < kPack; ++k) made.at[k] =
        Half(float(to_int8(alpha * float(sum.at[k]) + bias[pack * kPack + k])) * scale);
    device::store_pack(y + i * kPack, made, true);
  }
};
struct RoundHalf {
  float inverse;
  DEVICE_FN int8_t operator()(Half x) const { return to_int8(float(x) * inverse); }
};

class QOrderedLongformerAttention final : public Longformer {
 public:
  explicit QOrderedLongformerAttention(const NodeInfo& node) : Longformer(node) {
    const auto only = [&](const char* attribute, TileOrder order) {
      if (tile_order_of(node, attribute, order) != order) fail(Code::not_supported, attribute, " must be ", int(order));
    };
    only("order_input", TileOrder::rows);
    only("order_weight", TileOrder::columns);
    only("order_global_weight", TileOrder::columns);
    only("order_output", TileOrder::rows);
  }

  bool prepack(int input, const Tensor& constant, Prepack& prepack) override {
    if ((input != kWeights && input != kGlobalWeights) || constant.shape.rank() != 2 || constant.count() == 0)
      return false;
    (input == kWeights ? weights_ : global_weights_)
        .keep_rows(prepack, constant, Shape{}, constant.shape[1], constant.shape[0]);
    return true;
  }

  void run(Context& context) const override {
    const Tensor &input = context.input(kInput), &mask = context.input(kMask), &flags = context.input(kGlobal);
    const Sizes sizes = sizes_of(input, mask, flags);
    check(context, sizes.hidden, weights_, kWeights, kBias, "weight");
    check(context, sizes.hidden, global_weights_, kGlobalWeights, kGlobalBias, "global_weight");
    const float x = host_scale(context, kInputScale, "scale_input"),
                out = host_scale(context, kOutputScale, "scale_output"),
                weight = host_scale(context, kWeightScale, "scale_weight"),
                result = host_scale(context, kResultScale, "scale_qkv_gemm"),
                global_weight = host_scale(context, kGlobalWeightScale, "scale_global_weight"),
                global_result = host_scale(context, kGlobalResultScale, "scale_global_gemm");
    const Tensor y = context.output(0, input.shape);
    if (y.count() == 0) return;

    const int64_t rows = sizes.all_rows();
    const IntegerRows left = side(context, input, rows, sizes.hidden);
    const void* const local = project(context, left, weights_, kWeights, kBias, x * weight / result, result);
    const void* const global = project(context, left, global_weights_, kGlobalWeights, kGlobalBias,
                                       x * global_weight / global_result, global_result);
    auto* const halves = static_cast<Half*>(context.scratch(size_t(y.count()) * sizeof(Half)));
    attend_projected(context, sizes, local, global, mask, flags, halves);
    device::transform(context.stream(), y.count(), y.as<int8_t>(), RoundHalf{1.f / out}, halves);
  }

 private:
  static float host_scale(Context& context, int input, const char* what) {
    const Tensor& tensor = context.input(input);
    require(tensor.count() == 1, what, " has ", tensor.count(), " values; it must have one");
    const float scale = *tensor.as<const float>();
    require(scale > 0 && std::isfinite(scale), what, " is ", scale, "; it must be above zero");
    return scale;
  }
  static void check(Context& context, int64_t hidden, const ConstantSide& constant, int weights, int bias,
                    const char* what) {
    const int64_t columns = checked_product(3, hidden);
    const Shape &shape = (constant ? constant.like : context.input(weights)).shape, wanted{hidden, columns};
    require(shape == wanted, what, " has shape ", shape.str(), "; ", wanted.str(), " is wanted");
    const Shape& of_bias = context.input(bias).shape;
    require(of_bias == Shape{columns}, "the bias of ", what, " has shape ", of_bias.str(), "; [", columns,
            "] is wanted");
  }
  static IntegerRows side(Context& context, const Tensor& tensor, int64_t rows, int64_t depth) {
    void* const into = has_form(tensor, depth) ? nullptr : context.scratch(integer_rows_bytes(1, rows, depth));
    return pack_rows(context.stream(), tensor, Shape{}, rows, depth, into, nullptr);
  }

  static const void* project(Context& context, const IntegerRows& left, const ConstantSide& constant, int weights,
                             int bias, float alpha, float scale) {
    const int64_t columns = 3 * left.depth, count = checked_product(left.rows, columns);
    auto* const sums = static_cast<int32_t*>(context.scratch(size_t(checked_product(count, sizeof(int32_t)))));
    auto* const made = static_cast<Half*>(context.scratch(size_t(checked_product(count, sizeof(Half)))));
    IntegerProduct product;
    product.a = left;
    product.b = constant ? constant.rows : side(context, context.input(weights), columns, left.depth);
    product.finish.y = sums;
    product.row_step = columns;
    product.matrix_step = count;
    multiply(context, product);
    const auto round = [&]<int kPack> {
      device::for_each_index(context.stream(), count / kPack,
                             RoundSums<kPack>{sums, context.input(bias).as<const float>(), made, alpha, scale,
                                              Divider(columns / kPack, count)});
    };
    if (columns % 4 == 0)
      round.template operator()<4>();
    else
      round.template operator()<1>();
    return made;
  }

  ConstantSide weights_, global_weights_;  // if they are constants
};

}  // namespace

std::vector<OpRow> ordered_longformer_rows() {
  const Types whole{Type::i8}, scale{Type::f32};
  return {{.domain = kMicrosoft,
           .name = "QOrderedLongformerAttention",
           .since = 1,
           .types = {in(kInput, whole), in(kInputScale, scale), in(kMask, {Type::f16}), in(kGlobal, {Type::i32})},
           .make = make<QOrderedLongformerAttention>,
           .host_inputs = {kInputScale, kWeightScale, kBiasScale, kResultScale, kGlobalWeightScale, kGlobalResultScale,
                           kOutputScale}}};
}

}  // namespace encore::ops
