// com.microsoft's LongformerAttention. Which tokens are global, and how many, only the device knows, so that global
// queries, keys and values are made of all of them: a graph can hold the run.
#include "ops/attention/longformer/longformer.h"

#include <algorithm>
#include <cmath>

#include "ops/attention/inputs/heads.h"
#include "ops/attention/longformer/longformer_attention.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

enum { kInput, kWeights, kBias, kMask, kGlobalWeights, kGlobalBias, kGlobal };

// Weights of one matrix have all three parts side by side. Those of three matrices have another division of biases:
// those of global keys and values are behind the local ones.
class LongformerAttention final : public Longformer {
 public:
  explicit LongformerAttention(const NodeInfo& node) : Longformer(node), tf32_(node.settings.use_tf32) {
    for (const int i : {kWeights, kBias, kMask, kGlobalWeights, kGlobalBias})
      if (node.input_type(i) != node.input_type(kInput))
        fail(Code::not_supported, "input ", i, " is of another type than the first");
  }

  void run(Context& context) const override {
    const Tensor &input = context.input(kInput), &mask = context.input(kMask), &flags = context.input(kGlobal);
    const Tensor &weights = context.input(kWeights), &global_weights = context.input(kGlobalWeights);
    const Tensor &bias = context.input(kBias), &global_bias = context.input(kGlobalBias);
    const Sizes sizes = sizes_of(input, mask, flags);
    const int64_t hidden = sizes.hidden, parts = weights.shape.rank() == 3 ? 3 : 1;
    const auto check = [&](const Tensor& tensor, const Shape& wanted, const char* what) {
      require(tensor.shape == wanted, what, " has shape ", tensor.shape.str(), "; ", wanted.str(), " is wanted");
    };
    const Shape of_weights = parts == 3 ? Shape{3, hidden, hidden} : Shape{hidden, checked_product(3, hidden)};
    check(weights, of_weights, "weight");
    check(global_weights, of_weights, "global_weight");
    check(bias, {(parts == 3 ? 5 : 3) * hidden}, "bias");
    check(global_bias, {(parts == 3 ? 1 : 3) * hidden}, "global_bias");
    const Tensor y = context.output(0, input.shape);
    if (y.count() == 0) return;

    const auto project = [&](const Tensor& by, const void* first_bias, const void* more_biases) {
      device::Gemm gemm;
      gemm.type = gemm.output = input.type;
      gemm.m = sizes.all_rows(), gemm.n = gemm.ldb = 3 * hidden / parts, gemm.k = gemm.lda = hidden;
      gemm.ldc = 3 * hidden;
      gemm.has_bias = true;
      gemm.tf32 = tf32_;
      void* const made = context.scratch(device::size_bytes(input.type, checked_product(gemm.m, gemm.ldc)));
      ScratchWorkspace workspace(context);
      for (int64_t part = 0; part < parts; ++part) {
        const void* const added = part == 0 ? first_bias : offset(more_biases, (part - 1) * hidden, input.type);
        context.blas().gemm(context.stream(), gemm, input.data, offset(by.data, part * hidden * hidden, input.type),
                            offset(made, part * hidden, input.type), added, workspace);
      }
      return made;
    };
    const void* const local = project(weights, bias.data, offset(bias.data, hidden, input.type));
    const void* const global = project(global_weights, global_bias.data, offset(bias.data, 3 * hidden, input.type));
    attend_projected(context, sizes, local, global, mask, flags, y.data);
  }

 private:
  bool tf32_;
};

}  // namespace

Longformer::Longformer(const NodeInfo& node)
    : heads_(node.get_int("num_heads", 0)), window_(node.get_int("window", 0)) {
  require(heads_ > 0 && window_ > 0 && heads_ < kSizeCap && window_ < kSizeCap, "num_heads is ", heads_, " and window ",
          window_, "; they must be above zero, and below ", kSizeCap);
}

Longformer::Sizes Longformer::sizes_of(const Tensor& input, const Tensor& mask, const Tensor& flags) const {
  const Shape& shape = input.shape;
  require(shape.rank() == 3, "input has shape ", shape.str(), "; three dimensions are wanted");
  require(shape[1] % (2 * window_) == 0, "input has shape ", shape.str(), "; its ", shape[1],
          " rows must be padded to a multiple of ", 2 * window_, ", twice the window");
  require(shape[2] > 0 && shape[2] % heads_ == 0, "input has shape ", shape.str(), "; the ", heads_,
          " heads do not divide its last dimension");
  const Shape rows{shape[0], shape[1]};
  require(mask.shape == rows, "mask has shape ", mask.shape.str(), "; ", rows.str(), " is wanted");
  require(flags.shape == rows, "global has shape ", flags.shape.str(), "; ", rows.str(), " is wanted");
  return {shape[0], shape[1], shape[2]};
}

void Longformer::attend_projected(Context& context, const Sizes& sizes, const void* local, const void* global,
                                  const Tensor& mask, const Tensor& flags, void* y) const {
  const Type type = mask.type;
  const int64_t size = sizes.hidden / heads_;
  const auto parts = [&](const void* all) {
    return LongformerHeads{all, offset(all, sizes.hidden, type), offset(all, 2 * sizes.hidden, type)};
  };
  longformer_attention(context, {.type = type,
                                 .batch = sizes.batch,
                                 .heads = heads_,
                                 .rows = sizes.rows,
                                 .size = size,
                                 .window = window_,
                                 .local = parts(local),
                                 .global = parts(global),
                                 .batch_step = sizes.rows * 3 * sizes.hidden,
                                 .head_step = size,
                                 .row_step = 3 * sizes.hidden,
                                 .y = heads_in_rows(y, sizes.batch, sizes.rows, heads_, size, sizes.hidden).view,
                                 .mask = mask.data,
                                 .flags = flags.as<const int32_t>(),
                                 .scale = 1 / std::sqrt(double(size))});
}

std::vector<OpRow> longformer_rows() {
  const Types types{Type::f32, Type::f16};
  return {{.domain = kMicrosoft,
           .name = "LongformerAttention",
           .since = 1,
           .types = {in(kInput, types), in(kGlobal, {Type::i32})},
           .make = make<LongformerAttention>}};
}

}  // namespace encore::ops
