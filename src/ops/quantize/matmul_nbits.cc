// com.microsoft's MatMulNBits: a product with constant weights of 2, 4 or 8 bits.
#include <bit>

#include "ops/quantize/block_weights.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

class MatMulNBits : public Op {
 public:
  explicit MatMulNBits(const NodeInfo& node) : tf32_(node.settings.use_tf32) {
    const auto wanted = [&](const char* attribute) {
      const auto value = node.find_int(attribute);
      require(value.has_value(), "the attribute ", attribute, " is missing");
      require(*value > 0, attribute, " is ", *value, "; it must be positive");
      return *value;
    };
    weights_.rows = wanted("N"), weights_.depth = wanted("K");
    const int64_t block = wanted("block_size"), bits = node.get_int("bits", 4);
    require(block >= 16 && std::has_single_bit(uint64_t(block)), "block_size is ", block,
            "; it must be a power of two, and at least 16");
    if (bits != 2 && bits != 4 && bits != 8)
      fail(Code::not_supported, "weights of ", bits, " bits are not supported, only of 2, 4 and 8");
    if (const int64_t prepacked = node.get_int("weight_prepacked", 0); prepacked != 0)
      fail(Code::not_supported, "weight_prepacked is ", prepacked,
           ": weights in the layout of another execution provider's kernels are not supported");
    weights_.bits = int(bits);
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
  bool prepack(int input, const Tensor& constant, Prepack& prepack) override {
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

  void run(Context& context) const override {
    const Tensor& a = context.input(0);
    BlockCodes weights = weights_;
    require(a.shape.rank() >= 1 && a.shape.back() == weights.depth, "A has shape ", a.shape.str(),
            "; its last dimension must be K, ", weights.depth);
    const Tensor y = context.output(0, a.shape.with(a.shape.rank() - 1, weights.rows));
    const auto sized = [](const Tensor& tensor, int64_t count, const char* what) {
      require(tensor.count() == count, what, " has shape ", tensor.shape.str(), "; ", count, " values are wanted");
      return tensor.data;
    };
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
    BlockProduct product{.type = a.type, .a = a.data, .y = y.data, .tf32 = tf32_};
    if (const Tensor* bias = context.find_input(5)) product.bias = sized(*bias, weights.rows, "bias");
    if (y.count() == 0) return;
    product.count = a.count() / weights.depth;
    if (woven_.codes)
      multiply(context, product, weights, woven_);
    else
      multiply(context, product, weights);
  }

 private:
  Shape shape_of_codes() const { return {weights_.rows, weights_.blocks, weights_.block() / 8 * weights_.bits}; }

  BlockCodes weights_;
  WovenCodes woven_;
  bool may_weave_, tf32_;
};

}  // namespace

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
