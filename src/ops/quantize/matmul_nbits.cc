#include "ops/quantize/matmul_nbits.h"

#include <algorithm>
#include <bit>

#include "ops/choice.h"
#include "ops/elementwise/gate.h"
#include "ops/keep_list.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

const void* sized(const Tensor& tensor, int64_t count, const char* what) {
  require(tensor.count() == count, what, " has shape ", tensor.shape.str(), "; ", count, " values are wanted");
  return tensor.data;
}

// Places along the depth by their groups, each of which fills the block of its number. None if groups are not so large.
std::optional<std::vector<int32_t>> order_by_groups(const Tensor& groups, const BlockCodes& weights) {
  if (groups.count() < weights.depth) return std::nullopt;
  std::vector<int64_t> next(size_t(weights.blocks));
  for (int64_t block = 0; block < weights.blocks; ++block) next[size_t(block)] = block * weights.block();
  std::vector<int32_t> order(size_t(weights.depth), -1);
  for (int64_t k = 0; k < weights.depth; ++k) {
    const int64_t group = groups.as<const int32_t>()[k];
    if (group < 0 || group >= weights.blocks) return std::nullopt;
    const int64_t at = next[size_t(group)]++;
    if (at >= std::min((group + 1) * weights.block(), weights.depth)) return std::nullopt;
    order[size_t(at)] = int32_t(k);
  }
  return order;
}

}  // namespace

MatMulNBits::MatMulNBits(const NodeInfo& node)
    : tf32_(node.settings.use_tf32), gated_(node.get_int(kGated, 0) != 0), constant_bias_(node.constant_input(5)) {
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
  may_weave_ =
      kHalves.has(node.input_type(0)) && (!node.has_input(3) || node.input_type(3) == Type::u8) && can_weave(weights_);
  if (!may_weave_ || !node.has_input(4)) return;
  const Tensor* const groups = node.constant_input(4);
  auto order = groups ? order_by_groups(*groups, weights_) : std::nullopt;
  may_weave_ = order.has_value();
  if (order && !std::ranges::is_sorted(*order)) order_ = std::move(*order);
}

// Scales and zero points stay, too: they are little, and what is made of the weights for many rows reads them.
bool MatMulNBits::prepack(int input, const Tensor& constant, Prepack& prepack) {
  if (!may_weave_) return false;
  if (input == 1 && constant.shape == shape_of_codes()) {
    kept_order_ = keep_list(prepack, order_);
    woven_.codes = weave_codes(prepack, weights_, constant.data, kept_order_);
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
  const Tensor* const groups = context.find_input(4);
  if (groups && !woven_.codes) {
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
  BlockProduct product{.type = a.type,
                       .a = a.data,
                       .y = y.data,
                       .bias = bias_of(context),
                       .constant_bias = constant_bias_,
                       .count = a.count() / weights.depth,
                       .tf32 = tf32_,
                       .gated = gated_};
  if (y.count() == 0) return;
  if (!woven_.codes) return multiply(context, product, weights);
  if (kept_order_) {
    void* const ordered = context.scratch(a.bytes());
    order_columns(context.stream(), a.data, ordered, product.count, weights.depth, kept_order_);
    product.a = ordered;
  }
  multiply(context, product, weights, woven_);
}

bool MatMulNBits::run_normed(Context& context, RowNorm norm, const Tensor& x) const {
  const BlockCodes weights = weights_of(context);
  if (kept_order_ || norm.width != weights.depth || !fits_normed(context.stream().device(), norm.rows, weights, woven_))
    return false;
  const Tensor y = context.output(0, x.shape.with(x.shape.rank() - 1, columns()));
  const BlockProduct product{.type = x.type,
                             .y = y.data,
                             .bias = bias_of(context),
                             .constant_bias = constant_bias_,
                             .count = norm.rows,
                             .gated = gated_};
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
