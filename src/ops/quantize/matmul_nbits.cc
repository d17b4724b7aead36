#include "ops/quantize/matmul_nbits.h"

#include <bit>

#include "ops/choice.h"
#include "ops/elementwise/gate.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

const void* sized(const Tensor& tensor, int64_t count, const char* what) {
  require(tensor.count() == count, what, " has shape ", tensor.shape.str(), "; ", count, " values are wanted");
  return tensor.data;
}

}  // namespace

MatMulNBits::MatMulNBits(const NodeInfo& node) : tf32_(node.settings.use_tf32), gated_(node.get_int(kGated, 0) != 0) {
  const auto wanted = [&](const char* attribute) {
    const auto value = node.find_int(attribute);
    require(value.has_value(), "the attribute ", attribute, " is missing");
    require(*value > 0, attribute, " is ", *value, "; it must be positive");
    return *value;
  };
  weights_.rows = wanted("N"), weights_.depth = wanted("K");
  const int64_t block = wanted("block_size");
  require(block >= 16 && std::has_single_bit(uint64_t(block)), "block_size is ", block,
          "; it must be a power of two, and at least 16");
  weights_.bits = read_choice<int>(node, "bits", 4, {{2, 2}, {4, 4}, {8, 8}});
  if (const int64_t prepacked = node.get_int("weight_prepacked", 0); prepacked != 0)
    fail(Code::not_supported, "weight_prepacked is ", prepacked,
         ": weights in the layout of another execution provider's kernels are not supported");
  weights_.block_shift = std::countr_zero(uint64_t(block));
  weights_.blocks = (weights_.depth - 1) / block + 1;
  // So that no index overflows, also of the places that fill the last block up.
  checked_product(weights_.rows, checked_product(checked_product(weights_.blocks, block), 8));
  if (const Type zeros = node.input_type(3); zeros != Type::undefined && zeros != Type::u8)
    require(zeros == node.input_type(0), "zero_points are ", device::name(zeros), ", A is ",
            device::name(node.input_type(0)), "; they must be packed in uint8 or have A's type");
  may_weave_ = (node.input_type(0) == Type::f16 || node.input_type(0) == Type::bf16) && !node.has_input(4) &&
               (!node.has_input(3) || node.input_type(3) == Type::u8) && can_weave(weights_);
}

// Scales and zero points stay, too: they are little, and what is made of the weights for many rows reads them.
bool MatMulNBits::prepack(int input, const Tensor& constant, Prepack& prepack) {
  if (!may_weave_) return false;
  if (input == 1 && constant.shape == shape_of_codes()) {
    woven_.codes = weave_codes(prepack, weights_, constant.data);
    return true;
  }
  if (input == 2 && constant.count() == weights_.rows * weights_.blocks)
    woven_.scales = weave_scales(prepack, weights_, constant.data);
  if (input == 3 && constant.count() == weights_.rows * weights_.zero_bytes())
    woven_.zeros = weave_zeros(prepack, weights_, constant.data);
  return false;
}

BlockCodes MatMulNBits::weights_of(Context& context) const {
  BlockCodes weights = weights_;
  if (!woven_.codes) {
    const Tensor& codes = context.input(1);
    require(codes.shape == shape_of_codes(), "B has shape ", codes.shape.str(), ", not ", shape_of_codes().str());
    weights.codes = codes.as<const uint8_t>();
  }
  weights.scales = sized(context.input(2), weights.rows * weights.blocks, "scales");
  if (const Tensor* zeros = context.find_input(3)) {
    weights.packed_zeros = zeros->type == Type::u8;
    weights.zeros =
        sized(*zeros, weights.rows * (weights.packed_zeros ? weights.zero_bytes() : weights.blocks), "zero_points");
  }
  if (const Tensor* groups = context.find_input(4)) {
    const int64_t padded = weights.blocks * weights.block();
    require(groups->count() == weights.depth || groups->count() == padded, "g_idx has shape ", groups->shape.str(),
            "; K, ", weights.depth, ", values are wanted, or ", padded);
    weights.groups = groups->as<const int32_t>();
  }
  return weights;
}

const void* MatMulNBits::bias_of(Context& context) const {
  const Tensor* const bias = context.find_input(5);
  return bias ? sized(*bias, weights_.rows, "bias") : nullptr;
}

void MatMulNBits::run(Context& context) const {
  const Tensor& a = context.input(0);
  require(a.shape.rank() >= 1 && a.shape.back() == weights_.depth, "A has shape ", a.shape.str(),
          "; its last dimension must be K, ", weights_.depth);
  const Tensor y = context.output(0, a.shape.with(a.shape.rank() - 1, columns()));
  const BlockCodes weights = weights_of(context);
  const BlockProduct product{.type = a.type,
                             .a = a.data,
                             .y = y.data,
                             .bias = bias_of(context),
                             .count = a.count() / weights.depth,
                             .tf32 = tf32_,
                             .gated = gated_};
  if (y.count() == 0) return;
  if (woven_.codes)
    multiply(context, product, weights, woven_);
  else
    multiply(context, product, weights);
}

bool MatMulNBits::run_normed(Context& context, RowNorm norm, const Tensor& x) const {
  const BlockCodes weights = weights_of(context);
  if (norm.width != weights.depth || !fits_normed(context.stream().device(), norm.rows, weights, woven_)) return false;
  const Tensor y = context.output(0, x.shape.with(x.shape.rank() - 1, columns()));
  const BlockProduct product{
      .type = x.type, .y = y.data, .bias = bias_of(context), .count = norm.rows, .gated = gated_};
  if (context.wants_output(1)) norm.sum = context.output(1, x.shape).data;
  multiply_normed(context.stream(), norm, product, weights, woven_);
  return true;
}

std::vector<OpRow> matmul_nbits_rows() {
  const Types floats{Type::f32, Type::f16, Type::bf16};
  return {{.domain = kMicrosoft,
           .name = "MatMulNBits",
           .since = 1,
           .until = 1,
           .types = {in(0, floats), in(1, Types{Type::u8}), in(2, floats), in(3, floats | Types{Type::u8}),
                     in(4, Types{Type::i32}), in(5, floats)},
           .make = make<MatMulNBits>}};
}

}  // namespace encore::ops
