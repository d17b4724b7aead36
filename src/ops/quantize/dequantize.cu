// DequantizeLinear: (x - zero point) * scale.
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/quantize/scale_grid.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Pack;

constexpr Types kFromFloats = kFloat8 | Types{Type::f4e2m1};
constexpr Types kFromIntegers{Type::i2, Type::u2,  Type::i4,  Type::u4, Type::i8,
                              Type::u8, Type::i16, Type::u16, Type::i32};

// In packs first, then what is left one by one.
template <class T>
struct Dequantize {
  static constexpr int kPack = AnyInput::kPack;

  int64_t packs;
  AnyInput x;
  Scales scales;
  T* y;
  bool from_floats;  // which have no zero point

  DEVICE_FN void operator()(int64_t i) const {
    if (i < packs)
      device::store_pack(y + i * kPack, made<kPack>(i * kPack), true);
    else
      y[i + packs * (kPack - 1)] = made<1>(i + packs * (kPack - 1)).at[0];
  }

 private:
  template <int kCount>
  DEVICE_FN Pack<T, kCount> made(int64_t first) const {
    Pack<float, kCount> values{};
    Pack<int32_t, kCount> whole{};
    if (from_floats)
      values = x.floats<kCount>(first);
    else
      whole = x.integers<int32_t, kCount>(first);
    Pack<T, kCount> out;
    auto place = scales.grid.place(first);
    int64_t read = -1;
    float scale = 0;
    uint32_t zero = 0;
    UNROLL for (int e = 0; e < kCount; ++e) {
      if (place.index != read) {
        read = place.index;
        scale = scales.scale_at(read);
        if (!from_floats) zero = uint32_t(scales.zero_at(read));
      }
      const float value = from_floats ? values.at[e] : float(int32_t(uint32_t(whole.at[e]) - zero));
      out.at[e] = T(value * scale);
      scales.grid.advance(place);
    }
    return out;
  }
};

class DequantizeLinear : public Op {
 public:
  explicit DequantizeLinear(const NodeInfo& node)
      : axis_(node.get_int("axis", 1)), block_size_(node.get_int("block_size", 0)) {
    require(block_size_ >= 0, "block_size is ", block_size_, "; it must not be negative");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Scales scales = scales_of(context, x, axis_, block_size_);
    dequantize(context.stream(), x, scales, context.output(0, x.shape));
  }

 private:
  int64_t axis_, block_size_;
};

}  // namespace

void dequantize(StreamRef stream, const Tensor& x, const Scales& scales, const Tensor& y) {
  const int64_t n = x.count();
  if (n == 0) return;
  dispatch(TypeList<float, Half, BFloat16>{}, y.type, [&]<class T>() {
    using Kernel = Dequantize<T>;
    const AnyInput in(x.data, x.type);
    const int64_t packs = in.aligned && device::is_pack_aligned<Kernel::kPack>(y.as<T>()) ? n / Kernel::kPack : 0;
    device::for_each_index(stream, n - packs * (Kernel::kPack - 1),
                           Kernel{packs, in, scales, y.as<T>(), kFromFloats.has(x.type)});
  });
}

std::vector<OpRow> dequantize_rows() {
  const Types floats{Type::f32, Type::f16, Type::bf16};
  return {
      {.name = "DequantizeLinear",
       .since = 10,
       .types = {in(0, kFromFloats | kFromIntegers), in(1, floats | Types{Type::f8e8m0}), out(0, floats)},
       .make = make<DequantizeLinear>},
      {.domain = kMicrosoft,
       .name = "DequantizeLinear",
       .since = 1,
       .until = 1,
       .types = {in(0, kFromIntegers), in(1, Types{Type::f32, Type::f16}), out(0, Types{Type::f32, Type::f16})},
       .make = make<DequantizeLinear>},
  };
}

}  // namespace encore::ops
