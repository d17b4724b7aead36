// QuantizeLinear and DynamicQuantizeLinear.
#include <algorithm>
#include <cmath>

#include "device/launch.h"
#include "ops/elementwise/scalar_functions.h"
#include "ops/quantize/scale_grid.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Pack;

constexpr Types kQuantized = kFloat8 | kPacked | Types{Type::i8, Type::u8, Type::i16, Type::u16};

// The integers of a quantized type.
struct Range {
  int low, high;
};
Range range_of(Type type) {
  const int bits = device::size_bits(type);
  const bool is_signed = type == Type::i2 || type == Type::i4 || type == Type::i8 || type == Type::i16;
  return is_signed ? Range{-(1 << (bits - 1)), (1 << (bits - 1)) - 1} : Range{0, (1 << bits) - 1};
}

// In packs first, then what is left one by one; packed types only in packs, of which the last may not be full.
template <bool kIntegers>
struct Quantize {
  static constexpr int kPack = AnyInput::kPack;

  int64_t n, packs;
  AnyInput x;
  Scales scales;
  void* y;
  Type to;
  bool y_aligned;
  QuantizeOptions options;
  Range range;

  DEVICE_FN void operator()(int64_t i) const {
    if (i < packs) {
      const int64_t first = i * kPack;
      const int count = n - first < kPack ? int(n - first) : kPack;
      store(first, made<kPack>(first, count), count);
    } else {
      const int64_t at = i + packs * (kPack - 1);
      store(at, made<1>(at, 1), 1);
    }
  }

 private:
  template <int kCount>
  DEVICE_FN Pack<uint32_t, kCount> made(int64_t first, int count) const {
    Pack<float, kCount> in;
    if (x.type == Type::i32) {
      const auto whole = x.integers<int32_t, kCount>(first, count);
      UNROLL for (int e = 0; e < kCount; ++e) in.at[e] = float(whole.at[e]);
    } else {
      in = x.floats<kCount>(first, count);
    }
    Pack<uint32_t, kCount> out;
    auto place = scales.grid.place(first);
    int64_t read = -1;
    float scale = 0, zero = 0;
    UNROLL for (int e = 0; e < kCount; ++e) {
      if (e < count) {
        if (place.index != read) {
          read = place.index;
          scale = scales.scale_at(read);
          zero = zero_at(read);
        }
        out.at[e] = one(in.at[e], scale, zero);
        scales.grid.advance(place);
      } else {
        out.at[e] = 0;
      }
    }
    return out;
  }
  DEVICE_FN float zero_at(int64_t index) const {
    if constexpr (kIntegers) return float(scales.zero_at(index));
    return to == Type::f4e2m1 && scales.zero.data ? scales.zero.floats<1>(index).at[0] : 0.f;  // float8's is zero
  }
  DEVICE_FN float rounded(float value) const {
    if (options.precision == Type::f16) return device::Half(value);
    if (options.precision == Type::bf16) return device::BFloat16(value);
    return value;
  }
  DEVICE_FN uint32_t one(float x, float scale, float zero) const {
    const float quotient = rounded(rounded(x) / rounded(scale));
    if constexpr (kIntegers) {
      // Kept in range before the zero point is added; NaN becomes the least.
      const float low = float(range.low) - zero, high = float(range.high) - zero;
      float whole = rint(quotient);
      whole = whole > low ? whole : low;
      whole = whole < high ? whole : high;
      return uint32_t(int(whole) + int(zero));
    } else {
      switch (to) {
        case Type::f8e4m3: return device::Float8E4M3(quotient, options.saturate).bits;
        case Type::f8e5m2: return device::Float8E5M2(quotient, options.saturate).bits;
        case Type::f8e4m3fnuz: return device::Float8E4M3Fnuz(quotient, options.saturate).bits;
        case Type::f8e5m2fnuz: return device::Float8E5M2Fnuz(quotient, options.saturate).bits;
        default: return device::float4_bits(quotient + zero);
      }
    }
  }
  template <int kCount>
  DEVICE_FN void store(int64_t first, const Pack<uint32_t, kCount>& values, int count) const {
    switch (to) {
      case Type::i16:
      case Type::u16: return store_as<uint16_t>(first, values);
      case Type::i4:
      case Type::u4:
      case Type::f4e2m1:
        if constexpr (kCount == kPack) store_packed<4>(y, first, values, y_aligned, count);
        return;
      case Type::i2:
      case Type::u2:
        if constexpr (kCount == kPack) store_packed<2>(y, first, values, y_aligned, count);
        return;
      default: return store_as<uint8_t>(first, values);
    }
  }
  template <class T, int kCount>
  DEVICE_FN void store_as(int64_t first, const Pack<uint32_t, kCount>& values) const {
    Pack<T, kCount> out;
    UNROLL for (int e = 0; e < kCount; ++e) out.at[e] = T(values.at[e]);
    device::store_pack(static_cast<T*>(y) + first, out, true);
  }
};

class QuantizeLinear : public Op {
 public:
  explicit QuantizeLinear(const NodeInfo& node)
      : axis_(node.get_int("axis", 1)), block_size_(node.get_int("block_size", 0)) {
    require(block_size_ >= 0, "block_size is ", block_size_, "; it must not be negative");
    options_.saturate = node.get_int("saturate", 1) != 0;
    if (const int64_t precision = node.get_int("precision", 0)) {
      options_.precision = device::numbered_type(precision).value_or(Type::undefined);
      if (!Types{Type::f32, Type::f16, Type::bf16}.has(options_.precision))
        fail(Code::not_supported, "precision is ", precision, "; it must be float (1), float16 (10) or bfloat16 (16)");
    } else if (node.domain().empty() && node.since_version() >= 23 && kHalves.has(node.input_type(1))) {
      options_.precision = node.input_type(1);  // which opset 23 has for a default
    }
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Scales scales = scales_of(context, x, axis_, block_size_);
    quantize(context.stream(), x, scales, context.output(0, x.shape), options_);
  }

 private:
  int64_t axis_, block_size_;
  QuantizeOptions options_;
};

// ---- DynamicQuantizeLinear

struct Extremes {
  float low, high;
};
DEVICE_FN Extremes joined(Extremes a, Extremes b) {
  return {b.low < a.low ? b.low : a.low, b.high > a.high ? b.high : a.high};
}
struct Join {
  DEVICE_FN Extremes operator()(Extremes a, Extremes b) const { return joined(a, b); }
};

// Zero is within; NaN is not seen.
struct FindExtremes {
  static constexpr int kThreads = 256, kMaxThreads = kThreads, kPack = 4;
  const float* x;
  int64_t n;
  bool aligned;
  Extremes* found;  // one a block
  DEVICE_FN void operator()(Block<device::NoShared>& b, const device::NoShared&) const {
    const Extremes all = b.reduce(
        Extremes{0, 0},
        [&](int t) {
          Extremes mine{0, 0};
          for (int64_t i = (b.index() * kThreads + t) * kPack; i < n; i += b.count() * kThreads * kPack) {
            const auto pack = device::load_pack<kPack>(x + i, aligned, n - i < kPack ? int(n - i) : kPack);
            UNROLL for (int e = 0; e < kPack; ++e) mine = joined(mine, {pack.at[e], pack.at[e]});
          }
          return mine;
        },
        Join{});
    b.threads([&](int t, device::NoShared&) {
      if (t == 0) found[b.index()] = all;
    });
  }
};

// Each block finds the extremes of all once more, which are few, rather than wait for a kernel that tells them.
struct QuantizeByExtremes {
  static constexpr int kThreads = 256, kMaxThreads = kThreads, kPack = FindExtremes::kPack;
  const Extremes* found;
  int64_t count;
  const float* x;
  int64_t n;
  bool aligned, y_aligned;
  uint8_t* y;
  float* scale;
  uint8_t* zero;
  DEVICE_FN void operator()(Block<device::NoShared>& b, const device::NoShared&) const {
    const Extremes all = b.reduce(
        Extremes{0, 0},
        [&](int t) {
          Extremes mine{0, 0};
          for (int64_t i = t; i < count; i += kThreads) mine = joined(mine, found[i]);
          return mine;
        },
        Join{});
    b.threads([&](int t, device::NoShared&) {
      const float step = all.high == all.low ? 1.f : (all.high - all.low) / 255.f;
      const scalar::ToLinear from_zero{1, 0, 0, 255};
      const float zero_point = from_zero(0.f - all.low / step);
      if (b.index() == 0 && t == 0) *scale = step, *zero = uint8_t(zero_point);
      const scalar::ToLinear quantized{step, zero_point, 0, 255};
      for (int64_t i = (b.index() * kThreads + t) * kPack; i < n; i += b.count() * kThreads * kPack) {
        const int there = n - i < kPack ? int(n - i) : kPack;
        const auto in = device::load_pack<kPack>(x + i, aligned, there);
        Pack<uint8_t, kPack> out;
        UNROLL for (int e = 0; e < kPack; ++e) out.at[e] = uint8_t(quantized(in.at[e]));
        device::store_pack(y + i, out, y_aligned, there);
      }
    });
  }
};

class DynamicQuantizeLinear : public Op {
 public:
  explicit DynamicQuantizeLinear(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor y = context.output(0, x.shape), scale = context.output(1, Shape{}), zero = context.output(2, Shape{});
    auto* const scale_at = static_cast<float*>(scale.data ? scale.data : context.scratch(sizeof(float)));
    auto* const zero_at = static_cast<uint8_t*>(zero.data ? zero.data : context.scratch(1));
    constexpr int64_t kEach = FindExtremes::kThreads * FindExtremes::kPack * 4, kMostBlocks = 1024;
    const int64_t n = x.count(), blocks = std::min(n / kEach + (n % kEach != 0), kMostBlocks);
    auto* const found = static_cast<Extremes*>(context.scratch(size_t(blocks) * sizeof(Extremes)));
    const bool aligned = device::is_pack_aligned<FindExtremes::kPack>(x.as<const float>());
    device::block_kernel<device::NoShared>(context.stream(), {blocks, FindExtremes::kThreads},
                                           FindExtremes{x.as<const float>(), n, aligned, found});
    auto* const bytes = y.as<uint8_t>();
    device::block_kernel<device::NoShared>(
        context.stream(), {bytes ? std::max<int64_t>(blocks, 1) : 1, QuantizeByExtremes::kThreads},
        QuantizeByExtremes{found, blocks, x.as<const float>(), bytes ? n : 0, aligned,
                           device::is_pack_aligned<FindExtremes::kPack>(bytes), bytes, scale_at, zero_at});
  }
};

}  // namespace

void quantize(StreamRef stream, const Tensor& x, const Scales& scales, const Tensor& y, QuantizeOptions options) {
  constexpr int kPack = AnyInput::kPack;
  const int64_t n = x.count();
  if (n == 0) return;
  const AnyInput in(x.data, x.type);
  const bool y_aligned = AnyInput::pack_aligned(y.data, y.type);
  int64_t packs = in.aligned && y_aligned ? n / kPack : 0;
  if (device::is_packed(y.type)) packs = (n - 1) / kPack + 1;
  const int64_t single = device::is_packed(y.type) ? 0 : n - packs * kPack;
  const auto launch = [&]<bool kIntegers>() {
    device::for_each_index(stream, packs + single,
                           Quantize<kIntegers>{n, packs, in, scales, y.data, y.type, y_aligned, options,
                                               kIntegers ? range_of(y.type) : Range{}});
  };
  if (kFloat8.has(y.type) || y.type == Type::f4e2m1)
    launch.operator()<false>();
  else
    launch.operator()<true>();
}

std::vector<OpRow> quantize_rows() {
  const Types floats{Type::f32, Type::f16, Type::bf16};
  return {
      {.name = "QuantizeLinear",
       .since = 10,
       .types = {in(0, floats | Types{Type::i32}), in(1, floats | Types{Type::i32, Type::f8e8m0}), in(2, kQuantized),
                 out(0, kQuantized)},
       .make = make<QuantizeLinear>},
      {.domain = kMicrosoft,
       .name = "QuantizeLinear",
       .since = 1,
       .until = 1,
       .types = {in(0, Types{Type::f32, Type::f16}), in(1, Types{Type::f32, Type::f16}), in(2, kQuantized),
                 out(0, kQuantized)},
       .make = make<QuantizeLinear>},
      {.name = "DynamicQuantizeLinear",
       .since = 11,
       .types = {in(0, Types{Type::f32})},
       .make = make<DynamicQuantizeLinear>},
  };
}

}  // namespace encore::ops
