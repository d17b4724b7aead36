// RandomNormal, RandomUniform, their kin of another tensor's shape, and Bernoulli.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/random/runs.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Random4;

// From 0 up to, and without, 1.
template <class C>
DEVICE_FN C uniform_of(const Random4& random, int i) {
  if constexpr (std::is_same_v<C, double>) {
    const uint64_t word = uint64_t(random.word[2 * i]) << 32 | random.word[2 * i + 1];
    return double(word >> 11) * 0x1p-53;
  } else {
    return device::uniform(random.word[i]);
  }
}
// How many of a type come from four words.
template <class C>
constexpr int kOfFourWords = std::is_same_v<C, double> ? 2 : 4;

enum class Law { uniform, normal };

template <class T>
struct Draw {
  using C = Compute<T>;
  static constexpr int kPack = kOfFourWords<C>;
  int64_t n;
  T* y;
  RandomRun run;
  Law law;
  C start, scale;
  bool aligned;

  DEVICE_FN void operator()(int64_t i) const {
    const int64_t first = i * kPack;
    const int count = n - first < kPack ? int(n - first) : kPack;
    const Random4 random = run.words(i);
    C value[kPack];
    UNROLL for (int k = 0; k < kPack; ++k) value[k] = uniform_of<C>(random, k);
    if (law == Law::normal) {
      UNROLL for (int k = 0; k < kPack; k += 2) to_normal(value[k], value[k + 1]);
    }
    device::Pack<T, kPack> pack;
    UNROLL for (int k = 0; k < kPack; ++k) pack.at[k] = T(start + scale * value[k]);
    device::store_pack(y + first, pack, aligned, count);
  }

 private:
  // Box and Muller's way from two uniform numbers to two normal ones.
  DEVICE_FN static void to_normal(C& a, C& b) {
    const C radius = std::sqrt(C(-2) * std::log(C(1) - a)), angle = C(6.283185307179586) * b;
    a = radius * std::cos(angle);
    b = radius * std::sin(angle);
  }
};

class RandomOp : public Op {
 public:
  explicit RandomOp(const NodeInfo& node) : runs_(RandomRuns::of(node)) {
    const std::string& name = node.op_type();
    like_ = name.ends_with("Like");
    law_ = name.starts_with("RandomNormal") ? Law::normal : Law::uniform;
    if (law_ == Law::normal) {
      start_ = node.get_float("mean", 0);
      scale_ = node.get_float("scale", 1);
    } else {
      start_ = node.get_float("low", 0);
      scale_ = node.get_float("high", 1) - start_;
    }
    const std::optional<int64_t> type = node.find_int("dtype");
    type_ = type ? Type(*type) : like_ ? node.input_type(0) : Type::f32;
    if (*type_ == Type::undefined) type_.reset();
    if (type_ && !kFloats.has(*type_))
      fail(Code::not_supported, "random numbers of type ", device::name(*type_), "; ", kFloats.str(), " are supported");
    if (like_) return;
    const auto shape = node.find_ints("shape");
    require(shape.has_value(), "attribute 'shape' is missing");
    shape_ = Shape(*shape);
  }
  void prepare(Prepack& prepack) override { runs_.prepare(prepack); }
  void run(Context& context) const override {
    const Tensor y = context.output(0, like_ ? context.input(0).shape : shape_);
    if (y.count() == 0) return;
    const RandomRun run = runs_.next(context);
    dispatch(FloatList{}, y.type, [&]<class T>() {
      using C = Compute<T>;
      constexpr int kPack = Draw<T>::kPack;
      device::for_each_index(
          context.stream(), (y.count() + kPack - 1) / kPack,
          Draw<T>{y.count(), y.as<T>(), run, law_, C(start_), C(scale_), device::is_pack_aligned<kPack>(y.as<T>())});
    });
  }

 private:
  RandomRuns runs_;
  bool like_;
  Law law_;
  float start_, scale_;
  std::optional<Type> type_;
  Shape shape_;
};

// y = one where a number is below p, else zero: bits of whichever type.
template <class P, class Bits>
struct Toss {
  using C = Compute<P>;
  static constexpr int kPack = kOfFourWords<C>;
  int64_t n;
  const P* p;
  Bits *y, one;
  RandomRun run;
  bool aligned;

  DEVICE_FN void operator()(int64_t i) const {
    const int64_t first = i * kPack;
    const int count = n - first < kPack ? int(n - first) : kPack;
    const Random4 random = run.words(i);
    const auto odds = device::load_pack<kPack>(p + first, aligned, count);
    device::Pack<Bits, kPack> pack;
    UNROLL for (int k = 0; k < kPack; ++k) pack.at[k] = uniform_of<C>(random, k) < C(odds.at[k]) ? one : Bits(0);
    device::store_pack(y + first, pack, aligned, count);
  }
};

// The bits of 1 in a type; its lowest bytes come first.
uint64_t one_of(Type type) {
  uint64_t bits = 1;
  const auto take = [&](auto one) {
    bits = 0;
    std::memcpy(&bits, &one, sizeof one);
  };
  switch (type) {
    case Type::f32: take(1.f); break;
    case Type::f64: take(1.); break;
    case Type::f16: take(device::Half(1.f)); break;
    case Type::bf16: take(device::BFloat16(1.f)); break;
    default: break;
  }
  return bits;
}

class Bernoulli : public Op {
 public:
  explicit Bernoulli(const NodeInfo& node) : runs_(RandomRuns::of(node)) {}
  void prepare(Prepack& prepack) override { runs_.prepare(prepack); }
  void run(Context& context) const override {
    const Tensor& p = context.input(0);
    const Tensor y = context.output(0, p.shape);
    if (y.count() == 0) return;
    const RandomRun run = runs_.next(context);
    dispatch(FloatList{}, p.type, [&]<class P>() {
      dispatch_size(device::size_bytes(y.type), [&]<class Bits>() {
        if constexpr (std::is_integral_v<Bits>) {
          using Kernel = Toss<P, Bits>;
          const bool aligned = device::is_pack_aligned<Kernel::kPack>(p.as<const P>()) &&
                               device::is_pack_aligned<Kernel::kPack>(y.as<Bits>());
          device::for_each_index(context.stream(), (y.count() + Kernel::kPack - 1) / Kernel::kPack,
                                 Kernel{y.count(), p.as<const P>(), y.as<Bits>(), Bits(one_of(y.type)), run, aligned});
        }
      });
    });
  }

 private:
  RandomRuns runs_;
};

}  // namespace

std::vector<OpRow> random_rows() {
  std::vector<OpRow> rows;
  for (const char* name : {"RandomNormal", "RandomUniform"})
    rows.push_back({.name = name, .since = 1, .types = {out(0, kFloats)}, .make = make<RandomOp>});
  for (const char* name : {"RandomNormalLike", "RandomUniformLike"})
    rows.push_back(
        {.name = name, .since = 1, .types = {in(0, kNumbers | kBool), out(0, kFloats)}, .make = make<RandomOp>});
  rows.push_back(
      {.name = "Bernoulli", .since = 15, .types = {in(0, kFloats), out(0, kNumbers | kBool)}, .make = make<Bernoulli>});
  return rows;
}

}  // namespace encore::ops
