// com.microsoft's products with weights that are floats of 8 or 4 bits, quantized in blocks along the depth.
#include "device/divide.h"
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/quantize/block_gemv.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::Float8E4M3;

// Of 8 bits, or 4, the first in the lower ones; scales are floats, or floats of 8 bits times one for all.
template <int kBits>
struct FloatCodes {
  static constexpr int kAtOnce = 4;
  struct Eight {
    float values[8];
  };
  const uint8_t* codes;
  const float* scales;        // [rows, blocks], or null
  const uint8_t* few_scales;  // the same in 8 bits
  const float* factor;        // of all; null: 1
  int64_t row_bytes, depth, blocks;
  Divider by_block;

  DEVICE_FN Eight load(int64_t row, int64_t at) const {
    Eight eight = {};
    const uint8_t* const from = codes + row * row_bytes + at * kBits / 8;
    const float all = factor ? *factor : 1.f;
    const int count = depth - at < 8 ? int(depth - at) : 8;
    uint32_t bytes[kBits];
    UNROLL for (int i = 0; i < kBits; ++i) bytes[i] = i * 8 / kBits < count ? from[i] : 0;
    int64_t rest, read = -1;
    float scale = 0;
    UNROLL for (int i = 0; i < 8; ++i) {
      if (i >= count) continue;
      if (const int64_t block = by_block(at + i, rest); block != read) {
        read = block;
        scale = all * (scales ? scales[row * blocks + block]
                              : float(std::bit_cast<Float8E4M3>(few_scales[row * blocks + block])));
      }
      if constexpr (kBits == 8)
        eight.values[i] = float(std::bit_cast<Float8E4M3>(uint8_t(bytes[i]))) * scale;
      else
        eight.values[i] = device::float4_value(bytes[i / 2] >> i % 2 * 4 & 15) * scale;
    }
    return eight;
  }
  DEVICE_FN float value(const Eight& eight, int i) const { return eight.values[i]; }
};

// What a has in floats of 8 bits, less its scale.
template <class T>
struct RoundToFloat8 {
  const T* a;
  T* out;
  const float* scale;
  DEVICE_FN void operator()(int64_t i) const { out[i] = T(float(Float8E4M3(float(a[i]) / *scale))); }
};

// The inputs are A, B, the blocks' scales, one or two scales for all, and a bias.
template <int kBits>
class MatMulBlockFloats : public Op {
 public:
  explicit MatMulBlockFloats(const NodeInfo& node) : block_(node.get_int("block_size", kBits == 8 ? 128 : 16)) {
    require(block_ > 0, "block_size is ", block_, "; it must be positive");
  }

  void run(Context& context) const override {
    const Tensor &a = context.input(0), &codes = context.input(1), &scales = context.input(2);
    const Tensor* const bias = context.find_input(kBits == 8 ? 4 : 5);
    require(codes.shape.rank() == 2, "B has shape ", codes.shape.str(), "; a matrix is wanted");
    const int64_t rows = codes.shape[0], depth = checked_product(codes.shape[1], 8 / kBits);
    require(a.shape.rank() >= 1 && a.shape.back() == depth, "A has shape ", a.shape.str(),
            "; its last dimension must be ", depth, ", as B has it");
    const int64_t blocks = depth / block_ + (depth % block_ != 0);
    require(scales.shape == Shape({rows, blocks}), "the scales of blocks of ", block_, " have shape ",
            scales.shape.str(), ", not ", Shape({rows, blocks}).str());
    if (bias) require(bias->count() == rows, "bias has shape ", bias->shape.str(), "; ", rows, " values are wanted");
    // Of the activations, which are to be rounded, or of the weights.
    const Tensor* const factor = context.find_input(3);
    if (factor)
      require(factor->count() == 1, "the scale of all has shape ", factor->shape.str(), "; one value is wanted");
    const Tensor y = context.output(0, a.shape.with(a.shape.rank() - 1, rows));
    if (y.count() == 0) return;
    BlockProduct product{.type = a.type, .a = a.data, .y = y.data, .count = y.count() / rows};
    if (bias) product.bias = bias->data;
    const FloatCodes<kBits> weights{codes.as<const uint8_t>(),
                                    kBits == 8 ? scales.as<const float>() : nullptr,
                                    scales.as<const uint8_t>(),
                                    factor ? factor->as<const float>() : nullptr,
                                    codes.shape[1],
                                    depth,
                                    blocks,
                                    Divider(block_, depth)};
    dispatch(TypeList<Half, BFloat16>{}, a.type, [&]<class T> {
      if (kBits == 8 && factor && a.count() > 0) {
        T* const rounded = static_cast<T*>(context.scratch(a.bytes()));
        device::for_each_index(context.stream(), a.count(),
                               RoundToFloat8<T>{a.as<const T>(), rounded, factor->as<const float>()});
        product.a = rounded;
      }
      multiply_rows<T>(context, product, rows, depth, weights);
    });
  }

 private:
  int64_t block_;
};

}  // namespace

std::vector<OpRow> matmul_block_floats_rows() {
  const Types bytes{Type::u8}, floats{Type::f32};
  return {
      {.domain = kMicrosoft,
       .name = "MatMulBlockQuantizedFp8Weight",
       .since = 1,
       .until = 1,
       .types = {in(0, kHalves), in(1, Types{Type::f8e4m3}), in(2, floats), in(3, floats), in(4, kHalves)},
       .make = make<MatMulBlockFloats<8>>},
      {.domain = kMicrosoft,
       .name = "MatMulBlockQuantizedFp4Weight",
       .since = 1,
       .until = 1,
       .types = {in(0, kHalves), in(1, bytes), in(2, bytes), in(3, floats), in(4, floats), in(5, kHalves)},
       .make = make<MatMulBlockFloats<4>>},
  };
}

}  // namespace encore::ops
