// com.microsoft's MatMulBnb4: a product with constant weights of four bits, each of which stands for one of 16 numbers.
#include <algorithm>
#include <bit>

#include "ops/dispatch.h"
#include "ops/quantize/block_gemv.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

// Of the greatest magnitude of a block: quant_type 0, floats of four bits, and 1, quantiles of normal numbers.
constexpr float kFloats[16] = {0.f,  5.208333333e-03f,  0.66666667f,  1.f,  0.33333333f,  0.5f,  0.16666667f,  0.25f,
                               -0.f, -5.208333333e-03f, -0.66666667f, -1.f, -0.33333333f, -0.5f, -0.16666667f, -0.25f};
constexpr float kQuantiles[16] = {-1.f,
                                  -0.6961928009986877f,
                                  -0.5250730514526367f,
                                  -0.39491748809814453f,
                                  -0.28444138169288635f,
                                  -0.18477343022823334f,
                                  -0.09105003625154495f,
                                  0.f,
                                  0.07958029955625534f,
                                  0.16093020141124725f,
                                  0.24611230194568634f,
                                  0.33791524171829224f,
                                  0.44070982933044434f,
                                  0.5626170039176941f,
                                  0.7229568362236023f,
                                  1.f};

// Rows follow each other without a gap, also within a byte or a block, of which there are so many that no row has one
// of its own.
template <class T>
struct TableCodes {
  static constexpr int kAtOnce = 4;
  struct Eight {
    uint64_t bytes;  // the first codes in the lowest, of a byte the upper bits first
    int odd;         // 1 if the first code is a byte's second
    float scales[2];
    int first;  // codes of the first scale
  };
  const uint8_t* codes;
  const T* scales;
  int block_shift;
  int64_t depth, count;  // of all codes
  float table[16];

  DEVICE_FN Eight load(int64_t row, int64_t at) const {
    const int64_t begin = row * depth + at, block = begin >> block_shift, next = (block + 1) << block_shift;
    Eight eight = {};
    eight.odd = int(begin & 1);
    UNROLL for (int i = 0; i < 5; ++i) {
      if (begin / 2 + i < (count + 1) / 2) eight.bytes |= uint64_t(codes[begin / 2 + i]) << 8 * i;
    }
    eight.first = next - begin < 8 ? int(next - begin) : 8;
    eight.scales[0] = float(scales[block]);
    eight.scales[1] = eight.first < 8 && next < count ? float(scales[block + 1]) : 0.f;
    return eight;
  }
  DEVICE_FN float value(const Eight& eight, int i) const {
    const int at = i + eight.odd;
    return table[eight.bytes >> (at / 2 * 8 + (at % 2 ? 0 : 4)) & 15] * eight.scales[i < eight.first ? 0 : 1];
  }
};

class MatMulBnb4 : public Op {
 public:
  explicit MatMulBnb4(const NodeInfo& node)
      : transposed_(node.get_int("transB", 1) != 0), tf32_(node.settings.use_tf32) {
    const auto wanted = [&](const char* attribute, int64_t least) {
      const auto value = node.find_int(attribute);
      require(value.has_value(), "the attribute ", attribute, " is missing");
      require(*value >= least, attribute, " is ", *value, "; it must be at least ", least);
      return *value;
    };
    rows_ = wanted("N", 1), depth_ = wanted("K", 1);
    block_ = wanted("block_size", 16);
    require(std::has_single_bit(uint64_t(block_)), "block_size is ", block_, "; it must be a power of two");
    const int64_t kind = wanted("quant_type", 0);
    require(kind <= 1, "quant_type is ", kind, "; it must be 0, for floats, or 1, for quantiles");
    quantiles_ = kind == 1;
    checked_product(checked_product(rows_, depth_), 8);
  }

  void run(Context& context) const override {
    const Tensor &a = context.input(0), &codes = context.input(1), &scales = context.input(2);
    const int64_t in = transposed_ ? depth_ : rows_, made = transposed_ ? rows_ : depth_, count = rows_ * depth_;
    require(a.shape.rank() >= 1 && a.shape.back() == in, "A has shape ", a.shape.str(), "; its last dimension must be ",
            transposed_ ? "K, " : "N, ", in);
    const Tensor y = context.output(0, a.shape.with(a.shape.rank() - 1, made));
    require(codes.count() >= (count + 1) / 2, "B has shape ", codes.shape.str(), "; ", (count + 1) / 2,
            " bytes are wanted");
    const int64_t blocks = (count - 1) / block_ + 1;
    require(scales.count() >= blocks, "absmax has shape ", scales.shape.str(), "; ", blocks, " values are wanted");
    require(scales.type == a.type, "absmax is ", device::name(scales.type), ", A is ", device::name(a.type));
    if (y.count() == 0) return;
    const BlockProduct product{.type = a.type, .a = a.data, .y = y.data, .count = a.count() / in, .tf32 = tf32_};
    dispatch(TypeList<float, Half, BFloat16>{}, a.type, [&]<class T> {
      TableCodes<T> weights{
          codes.as<const uint8_t>(), scales.as<const T>(), std::countr_zero(uint64_t(block_)), depth_, count, {}};
      std::copy_n(quantiles_ ? kQuantiles : kFloats, 16, weights.table);
      if (transposed_)
        multiply_rows<T>(context, product, rows_, depth_, weights);
      else
        multiply_columns<T>(context, product, rows_, depth_, weights);
    });
  }

 private:
  int64_t rows_, depth_, block_;
  bool transposed_, quantiles_, tf32_;
};

}  // namespace

std::vector<OpRow> matmul_bnb4_rows() {
  const Types floats{Type::f32, Type::f16, Type::bf16};
  return {{.domain = kMicrosoft,
           .name = "MatMulBnb4",
           .since = 1,
           .until = 1,
           .types = {in(0, floats), in(1, Types{Type::u8}), in(2, floats)},
           .make = make<MatMulBnb4>}};
}

}  // namespace encore::ops
