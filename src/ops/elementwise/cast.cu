// Cast: a kernel for each destination type, which switches over source types.
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/elementwise/convert.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

using device::Float8E4M3;
using device::Float8E5M2;
using device::Pack;

// Values are read into one of four types that holds them exactly, and go on from there.
enum class Through { f32, f64, i64, u64 };
Through through(Type from) {
  if (from == Type::f64) return Through::f64;
  if (from == Type::u64) return Through::u64;
  return (kFloats | kFloat8).has(from) ? Through::f32 : Through::i64;
}

// In packs first, then what is left one by one.
template <class To>
struct CastTo {
  static constexpr int kPack = 8;
  using Last = std::conditional_t<std::is_arithmetic_v<To>, To, float>;  // half types and float8 are made from floats

  int64_t packs;
  const void* x;
  To* y;
  Type from;
  Through by;
  bool saturate;

  DEVICE_FN void operator()(int64_t i) const {
    if (i < packs)
      device::store_pack<kPack>(y + i * kPack, take<kPack>(i * kPack), true);
    else
      y[i + packs * (kPack - 1)] = take<1>(i + packs * (kPack - 1)).at[0];
  }

 private:
  template <int kCount>
  DEVICE_FN Pack<To, kCount> take(int64_t first) const {
    Pack<Last, kCount> values;
    switch (by) {
      case Through::f32: values = map<Last>(read_floats<kCount>(first)); break;
      case Through::f64: values = map<Last>(read<double, double, kCount>(first)); break;
      case Through::i64: values = map<Last>(read_integers<kCount>(first)); break;
      case Through::u64: values = map<Last>(read<uint64_t, uint64_t, kCount>(first)); break;
    }
    return map<To>(values);
  }
  template <class By, class From, int kCount>
  DEVICE_FN Pack<By, kCount> read(int64_t first) const {
    const auto in = device::load_pack<kCount>(static_cast<const From*>(x) + first, true);
    Pack<By, kCount> out;
    UNROLL for (int i = 0; i < kCount; ++i) out.at[i] = By(in.at[i]);
    return out;
  }
  template <int kCount>
  DEVICE_FN Pack<float, kCount> read_floats(int64_t first) const {
    switch (from) {
      case Type::f16: return read<float, Half, kCount>(first);
      case Type::bf16: return read<float, BFloat16, kCount>(first);
      case Type::f8e4m3: return read<float, Float8E4M3, kCount>(first);
      case Type::f8e5m2: return read<float, Float8E5M2, kCount>(first);
      default: return read<float, float, kCount>(first);
    }
  }
  template <int kCount>
  DEVICE_FN Pack<int64_t, kCount> read_integers(int64_t first) const {
    switch (from) {
      case Type::i8: return read<int64_t, int8_t, kCount>(first);
      case Type::i16: return read<int64_t, int16_t, kCount>(first);
      case Type::i32: return read<int64_t, int32_t, kCount>(first);
      case Type::u16: return read<int64_t, uint16_t, kCount>(first);
      case Type::u32: return read<int64_t, uint32_t, kCount>(first);
      case Type::i64: return read<int64_t, int64_t, kCount>(first);
      default: return read<int64_t, uint8_t, kCount>(first);  // and bool, which is 0 or 1
    }
  }
  template <class Next, class By, int kCount>
  DEVICE_FN Pack<Next, kCount> map(const Pack<By, kCount>& in) const {
    Pack<Next, kCount> out;
    UNROLL for (int i = 0; i < kCount; ++i) out.at[i] = one<Next>(in.at[i]);
    return out;
  }
  template <class Next, class By>
  DEVICE_FN Next one(By value) const {
    if constexpr (std::is_same_v<Next, bool>)
      return value != By(0);
    else if constexpr (std::is_same_v<Next, Float8E4M3> || std::is_same_v<Next, Float8E5M2>)
      return Next(value, saturate);
    else if constexpr (std::is_integral_v<Next> && std::is_floating_point_v<By>)
      return truncated<Next>(value);
    else
      return Next(value);
  }
};

using CastList = TypeList<float, Half, BFloat16, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t,
                          uint64_t, bool, Float8E4M3, Float8E5M2>;

class Cast : public Op {
 public:
  // The target is the output's type: of Cast the attribute `to`, of CastLike the second input's.
  explicit Cast(const NodeInfo& node) : to_(node.output_type(0)), saturate_(node.get_int("saturate", 1) != 0) {
    if (!kFixedSize.has(to_)) fail(Code::not_supported, "a cast to ", device::name(to_), " is not supported");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor y = context.output(0, x.shape);
    if (x.type == to_)  // nothing is rounded: an infinite float8 stays what it is
      copy_bytes(context.stream(), x.data, y.data, int64_t(x.bytes()));
    else
      convert(context.stream(), x.count(), x.type, x.data, to_, y.data, saturate_);
  }

 private:
  Type to_;
  bool saturate_;
};

}  // namespace

void convert(StreamRef stream, int64_t n, Type from, const void* x, Type to, void* y, bool saturate) {
  if (n == 0) return;
  require(kFixedSize.has(from), "a cast from ", device::name(from), " is not supported");
  dispatch(CastList{}, to, [&]<class To> {
    using Kernel = CastTo<To>;
    const bool aligned = device::is_pack_aligned<Kernel::kPack>(static_cast<To*>(y)) &&
                         reinterpret_cast<uintptr_t>(x) % (Kernel::kPack * device::size_bytes(from)) == 0;
    const int64_t packs = aligned ? n / Kernel::kPack : 0;
    device::for_each_index(stream, n - packs * (Kernel::kPack - 1),
                           Kernel{packs, x, static_cast<To*>(y), from, through(from), saturate});
  });
}

std::vector<OpRow> cast_rows() {
  return {
      {.name = "Cast", .since = 1, .types = {in(0, kFixedSize), out(0, kFixedSize)}, .make = make<Cast>},
      {.name = "CastLike", .since = 15, .types = {in(0, kFixedSize), in(1, kFixedSize)}, .make = make<Cast>},
  };
}

}  // namespace encore::ops
