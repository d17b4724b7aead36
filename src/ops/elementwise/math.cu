// Arithmetic of one operand, rounding, and tests of a value.
#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/elementwise/rough.h"
#include "ops/elementwise/scalar_functions.h"
#include "ops/elementwise/unary.h"

namespace encore::ops {
namespace {

class Not : public Op {
 public:
  explicit Not(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor y = context.output(0, x.shape);
    device::transform(context.stream(), x.count(), y.as<uint8_t>(), scalar::Inverted{}, x.as<const uint8_t>());
  }
};

struct Unordered {
  template <class T>
  DEVICE_FN bool operator()(T x) const {
    return x != x;
  }
};
// The NaNs of an 8-bit float are `count` neighbouring patterns from `first` on, once masked.
struct NanByte {
  uint8_t mask, first, count;
  DEVICE_FN bool operator()(uint8_t bits) const { return uint8_t((bits & mask) - first) < count; }
};
class IsNan : public Op {
 public:
  explicit IsNan(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor y = context.output(0, x.shape);
    auto test_bytes = [&](NanByte nan) {
      device::transform(context.stream(), x.count(), y.as<bool>(), nan, x.as<const uint8_t>());
    };
    switch (x.type) {
      case Type::f8e4m3: return test_bytes({0x7f, 0x7f, 1});
      case Type::f8e5m2: return test_bytes({0x7f, 0x7d, 3});
      case Type::f8e4m3fnuz:
      case Type::f8e5m2fnuz: return test_bytes({0xff, 0x80, 1});
      default: break;
    }
    dispatch(FloatList{}, x.type, [&]<class T> {
      device::transform(context.stream(), x.count(), y.as<bool>(), Computed<Unordered>{}, x.as<const T>());
    });
  }
};

struct Infinite {
  bool negative, positive;
  template <class T>
  DEVICE_FN bool operator()(T x) const {
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    return (positive && x == kInfinity) || (negative && x == -kInfinity);
  }
};
// Of the 8-bit floats only e5m2 has infinities, one pattern for each sign.
struct InfiniteByte {
  bool negative, positive;
  DEVICE_FN bool operator()(uint8_t bits) const { return (positive && bits == 0x7c) || (negative && bits == 0xfc); }
};
class IsInf : public Op {
 public:
  explicit IsInf(const NodeInfo& node)
      : negative_(node.get_int("detect_negative", 1) != 0), positive_(node.get_int("detect_positive", 1) != 0) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor y = context.output(0, x.shape);
    if (kFloat8.has(x.type)) {
      const bool has_any = x.type == Type::f8e5m2;
      device::transform(context.stream(), x.count(), y.as<bool>(),
                        InfiniteByte{has_any && negative_, has_any && positive_}, x.as<const uint8_t>());
      return;
    }
    dispatch(FloatList{}, x.type, [&]<class T> {
      device::transform(context.stream(), x.count(), y.as<bool>(), Computed<Infinite>{{negative_, positive_}},
                        x.as<const T>());
    });
  }

 private:
  bool negative_, positive_;
};

using SignedNumberList = TypeList<float, Half, BFloat16, double, int8_t, int16_t, int32_t, int64_t>;

}  // namespace

std::vector<OpRow> math_rows() {
  return {
      unary_row<scalar::Abs, NumberList>("Abs", 1, kNumbers),
      unary_row<scalar::Neg, SignedNumberList>("Neg", 1, kFloats | kSigned),
      unary_row<scalar::Sign, NumberList>("Sign", 9, kNumbers),
      unary_row<scalar::Exp, FloatList>("Exp", 1, kFloats),
      unary_row<scalar::Log, FloatList>("Log", 1, kFloats),
      unary_row<scalar::Sqrt, FloatList>("Sqrt", 1, kFloats),
      unary_row<scalar::Reciprocal, FloatList>("Reciprocal", 1, kFloats),
      unary_row<scalar::Erf, FloatList>("Erf", 9, kFloats),
      unary_row<scalar::Ceil, FloatList>("Ceil", 1, kFloats),
      unary_row<scalar::Floor, FloatList>("Floor", 1, kFloats),
      unary_row<scalar::Round, FloatList>("Round", 11, kFloats),
      {.name = "Not", .since = 1, .types = {in(0, kBool)}, .make = make<Not>, .may_reuse = {{0, 0}}},
      {.name = "IsNaN", .since = 9, .types = {in(0, kFloats | kFloat8)}, .make = make<IsNan>},
      {.name = "IsInf", .since = 10, .types = {in(0, kFloats | kFloat8)}, .make = make<IsInf>},
  };
}

}  // namespace encore::ops
