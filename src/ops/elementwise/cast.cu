// Cast: a kernel for each destination type, which switches over source types.
#include <cmath>

#include "device/transform.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/elementwise/any_type.h"
#include "ops/elementwise/convert.h"
#include "ops/elementwise/truncate.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

using device::Pack;
using device::PowerRounding;

// Values are read into one of four types that holds them exactly, and go on from there.
enum class Through { f32, f64, i64, u64 };
Through through(Type from) {
  if (from == Type::f64) return Through::f64;
  if (from == Type::u64) return Through::u64;
  return (kFloats | kFloat8 | Types{Type::f8e8m0, Type::f4e2m1}).has(from) ? Through::f32 : Through::i64;
}

// What float8 makes of values that it does not hold.
struct Narrowing {
  bool saturate;
  PowerRounding rounding;  // of float8e8m0
};

template <class T>
inline constexpr bool kIsFloat8 = sizeof(T) == 1 && !std::is_arithmetic_v<T>;

template <class Next, class By>
DEVICE_FN Next converted(By value, Narrowing narrowing) {
  if constexpr (std::is_same_v<Next, bool>)
    return value != By(0);
  else if constexpr (std::is_same_v<Next, device::Float8E8M0>)
    return Next(value, narrowing.saturate, narrowing.rounding);
  else if constexpr (kIsFloat8<Next>)
    return Next(value, narrowing.saturate);
  else if constexpr (std::is_integral_v<Next> && std::is_floating_point_v<By>)
    return truncated<Next>(value);
  else
    return Next(value);
}

// The values from `first` on, each made one of `f`'s.
template <class Next, int kCount, class F>
DEVICE_FN Pack<Next, kCount> take(const AnyInput& x, Through by, int64_t first, int count, F f) {
  const auto all = [&](const auto& in) {
    Pack<Next, kCount> out;
    UNROLL for (int i = 0; i < kCount; ++i) out.at[i] = f(in.at[i]);
    return out;
  };
  switch (by) {
    case Through::f32: return all(x.floats<kCount>(first, count));
    case Through::f64: return all(x.read<double, double, kCount>(first, count));
    case Through::u64: return all(x.read<uint64_t, uint64_t, kCount>(first, count));
    default: return all(x.integers<int64_t, kCount>(first, count));
  }
}

// In packs first, then what is left one by one.
template <class To>
struct CastTo {
  // A thread writes 16 bytes: of more, its neighbours' would not lie side by side.
  static constexpr int kPack = sizeof(To) < 4 ? AnyInput::kPack : AnyInput::kPack / 2;
  using Last = std::conditional_t<std::is_arithmetic_v<To>, To, float>;  // half types and float8 are made from floats

  int64_t packs;
  AnyInput x;
  To* y;
  Through by;
  Narrowing narrowing;

  DEVICE_FN void operator()(int64_t i) const {
    if (i < packs)
      device::store_pack<kPack>(y + i * kPack, made<kPack>(i * kPack), true);
    else
      y[i + packs * (kPack - 1)] = made<1>(i + packs * (kPack - 1)).at[0];
  }

 private:
  template <int kCount>
  DEVICE_FN Pack<To, kCount> made(int64_t first) const {
    const auto values =
        take<Last, kCount>(x, by, first, kCount, [&](auto value) { return converted<Last>(value, narrowing); });
    Pack<To, kCount> out;
    UNROLL for (int i = 0; i < kCount; ++i) out.at[i] = converted<To>(values.at[i], narrowing);
    return out;
  }
};

// To elements of 2 or 4 bits: the low bits of an integer. Fractions are rounded, halves away from zero.
struct CastToPacked {
  static constexpr int kPack = AnyInput::kPack;
  int64_t n;
  AnyInput x;
  void* y;
  Through by;
  Type to;
  bool aligned;

  DEVICE_FN void operator()(int64_t pack) const {
    const int64_t first = pack * kPack;
    const int count = n - first < kPack ? int(n - first) : kPack;
    if (to == Type::f4e2m1)
      store_packed<4>(y, first,
                      take<uint32_t, kPack>(x, by, first, count, [](auto v) { return device::float4_bits(float(v)); }),
                      aligned, count);
    else if (to == Type::i4 || to == Type::u4)
      store_packed<4>(y, first, integers(first, count), aligned, count);
    else
      store_packed<2>(y, first, integers(first, count), aligned, count);
  }

 private:
  DEVICE_FN Pack<uint32_t, kPack> integers(int64_t first, int count) const {
    return take<uint32_t, kPack>(x, by, first, count, [](auto value) {
      if constexpr (std::is_floating_point_v<decltype(value)>)
        return uint32_t(saturated<int32_t>(round(value)));
      else
        return uint32_t(value);
    });
  }
};

using CastList = TypeList<float, Half, BFloat16, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t,
                          uint64_t, bool, device::Float8E4M3, device::Float8E5M2, device::Float8E4M3Fnuz,
                          device::Float8E5M2Fnuz, device::Float8E8M0>;
constexpr Types kCasts = kFixedSize | kPacked;

void convert(StreamRef stream, int64_t n, Type from, const void* x, Type to, void* y, Narrowing narrowing) {
  if (n == 0) return;
  require(kCasts.has(from), "a cast from ", device::name(from), " is not supported");
  AnyInput in(x, from);
  if (device::is_packed(to)) {
    device::for_each_index(stream, (n - 1) / AnyInput::kPack + 1,
                           CastToPacked{n, in, y, through(from), to, AnyInput::pack_aligned(y, to)});
    return;
  }
  dispatch(CastList{}, to, [&]<class To> {
    using Kernel = CastTo<To>;
    const int64_t packs =
        in.aligned && device::is_pack_aligned<Kernel::kPack>(static_cast<To*>(y)) ? n / Kernel::kPack : 0;
    device::for_each_index(stream, n - packs * (Kernel::kPack - 1),
                           Kernel{packs, in, static_cast<To*>(y), through(from), narrowing});
  });
}

PowerRounding rounding_of(const NodeInfo& node) {
  return read_choice<PowerRounding>(
      node, "round_mode", "up",
      {{"up", PowerRounding::up}, {"down", PowerRounding::down}, {"nearest", PowerRounding::nearest}});
}

class Cast : public Op {
 public:
  // The target is the output's type: of Cast the attribute `to`, of CastLike the second input's.
  explicit Cast(const NodeInfo& node)
      : to_(node.output_type(0)), narrowing_{node.get_int("saturate", 1) != 0, rounding_of(node)} {
    if (!kCasts.has(to_)) fail(Code::not_supported, "a cast to ", device::name(to_), " is not supported");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor y = context.output(0, x.shape);
    if (x.type == to_)  // nothing is rounded: an infinite float8 stays what it is
      copy_bytes(context.stream(), x.data, y.data, int64_t(x.bytes()));
    else
      convert(context.stream(), x.count(), x.type, x.data, to_, y.data, narrowing_);
  }

 private:
  Type to_;
  Narrowing narrowing_;
};

}  // namespace

void convert(StreamRef stream, int64_t n, Type from, const void* x, Type to, void* y, bool saturate) {
  convert(stream, n, from, x, to, y, Narrowing{saturate, PowerRounding::up});
}

std::vector<OpRow> cast_rows() {
  return {
      {.name = "Cast", .since = 1, .types = {in(0, kCasts), out(0, kCasts)}, .make = make<Cast>},
      {.name = "CastLike", .since = 15, .types = {in(0, kCasts), in(1, kCasts)}, .make = make<Cast>},
  };
}

}  // namespace encore::ops
