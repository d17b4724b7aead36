// Arithmetic of one operand, rounding, and tests of a value.
#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/elementwise/rough.h"
#include "ops/elementwise/unary.h"

namespace encore::ops {
namespace {

// -x, where the negative of the least integer is itself.
template <class T>
DEVICE_FN T negative(T x) {
  if constexpr (std::is_integral_v<T>)
    return T(std::make_unsigned_t<T>(0) - std::make_unsigned_t<T>(x));
  else
    return -x;
}
struct Abs {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>)
      return std::fabs(x);
    else if constexpr (std::is_signed_v<T>)
      return x < T(0) ? negative(x) : x;
    else
      return x;
  }
};
struct Neg {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return negative(x);
  }
};
struct Sign {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    if constexpr (std::is_signed_v<T>)
      return x > T(0) ? T(1) : x < T(0) ? T(-1) : x;  // 0 and NaN are their own
    else
      return x > T(0);
  }
};
struct Exp {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::exp(x);
  }
};
struct Log {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::log(x);
  }
};
struct Sqrt {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::sqrt(x);
  }
};
struct Reciprocal {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return T(1) / x;
  }
};
struct Erf {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::erf(x);
  }
  DEVICE_FN float rough(float x) const { return rough_erf(x); }
};
struct Ceil {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::ceil(x);
  }
};
struct Floor {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::floor(x);
  }
};
struct Round {  // halves go to the even neighbour
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::rint(x);
  }
};

struct Inverted {
  DEVICE_FN uint8_t operator()(uint8_t x) const { return x == 0; }
};
class Not : public Op {
 public:
  explicit Not(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor y = context.output(0, x.shape);
    device::transform(context.stream(), x.count(), y.as<uint8_t>(), Inverted{}, x.as<const uint8_t>());
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
      unary_row<Abs, NumberList>("Abs", 1, kNumbers),
      unary_row<Neg, SignedNumberList>("Neg", 1, kFloats | kSigned),
      unary_row<Sign, NumberList>("Sign", 9, kNumbers),
      unary_row<Exp, FloatList>("Exp", 1, kFloats),
      unary_row<Log, FloatList>("Log", 1, kFloats),
      unary_row<Sqrt, FloatList>("Sqrt", 1, kFloats),
      unary_row<Reciprocal, FloatList>("Reciprocal", 1, kFloats),
      unary_row<Erf, FloatList>("Erf", 9, kFloats),
      unary_row<Ceil, FloatList>("Ceil", 1, kFloats),
      unary_row<Floor, FloatList>("Floor", 1, kFloats),
      unary_row<Round, FloatList>("Round", 11, kFloats),
      {.name = "Not", .since = 1, .types = {in(0, kBool)}, .make = make<Not>, .may_reuse = {{0, 0}}},
      {.name = "IsNaN", .since = 9, .types = {in(0, kFloats | kFloat8)}, .make = make<IsNan>},
      {.name = "IsInf", .since = 10, .types = {in(0, kFloats | kFloat8)}, .make = make<IsInf>},
  };
}

}  // namespace encore::ops
