// Cast: a kernel for each destination type, which switches over source types.
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/elementwise/convert.h"
#include "ops/rooms.h"

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

template <class To>
struct CastTo {
  static constexpr int kPack = 8;

  int64_t n;
  const void* x;
  To* y;
  Type from;
  Through by;
  bool aligned, saturate;

  DEVICE_FN void operator()(int64_t pack) const {
    const int64_t first = pack * kPack;
    const int count = n - first < kPack ? int(n - first) : kPack;
    Pack<To, kPack> out;
    switch (by) {
      case Through::f32: out = map(read_floats(first, count)); break;
      case Through::f64: out = map(read<double, double>(first, count)); break;
      case Through::i64: out = map(read_integers(first, count)); break;
      case Through::u64: out = map(read<uint64_t, uint64_t>(first, count)); break;
    }
    device::store_pack(y + first, out, aligned, count);
  }

 private:
  template <class By, class From>
  DEVICE_FN Pack<By, kPack> read(int64_t first, int count) const {
    const auto in = device::load_pack<kPack>(static_cast<const From*>(x) + first, aligned, count);
    Pack<By, kPack> out;
    UNROLL for (int i = 0; i < kPack; ++i) out.at[i] = By(in.at[i]);
    return out;
  }
  DEVICE_FN Pack<float, kPack> read_floats(int64_t first, int count) const {
    switch (from) {
      case Type::f16: return read<float, Half>(first, count);
      case Type::bf16: return read<float, BFloat16>(first, count);
      case Type::f8e4m3: return read<float, Float8E4M3>(first, count);
      case Type::f8e5m2: return read<float, Float8E5M2>(first, count);
      default: return read<float, float>(first, count);
    }
  }
  DEVICE_FN Pack<int64_t, kPack> read_integers(int64_t first, int count) const {
    switch (from) {
      case Type::i8: return read<int64_t, int8_t>(first, count);
      case Type::i16: return read<int64_t, int16_t>(first, count);
      case Type::i32: return read<int64_t, int32_t>(first, count);
      case Type::u16: return read<int64_t, uint16_t>(first, count);
      case Type::u32: return read<int64_t, uint32_t>(first, count);
      case Type::i64: return read<int64_t, int64_t>(first, count);
      default: return read<int64_t, uint8_t>(first, count);  // and bool, which is 0 or 1
    }
  }
  template <class By>
  DEVICE_FN Pack<To, kPack> map(const Pack<By, kPack>& in) const {
    Pack<To, kPack> out;
    UNROLL for (int i = 0; i < kPack; ++i) out.at[i] = one(in.at[i]);
    return out;
  }
  template <class By>
  DEVICE_FN To one(By value) const {
    if constexpr (std::is_same_v<To, bool>)
      return value != By(0);
    else if constexpr (std::is_same_v<To, Float8E4M3> || std::is_same_v<To, Float8E5M2>)
      return To(float(value), saturate);
    else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<By>)
      return truncated<To>(value);
    else if constexpr (std::is_arithmetic_v<To>)
      return To(value);
    else
      return To(float(value));
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
    device::for_each_index(stream, (n + Kernel::kPack - 1) / Kernel::kPack,
                           Kernel{n, x, static_cast<To*>(y), from, through(from), aligned, saturate});
  });
}

std::vector<OpRow> cast_rows() {
  return {
      {kOnnx, "Cast", 6, kNewestOpset, {in(0, kFixedSize), out(0, kFixedSize)}, make<Cast>},
      {kOnnx, "CastLike", 15, kNewestOpset, {in(0, kFixedSize), in(1, kFixedSize)}, make<Cast>},
  };
}

}  // namespace encore::ops
