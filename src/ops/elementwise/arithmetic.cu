// Addition, subtraction, multiplication, PRelu. Integers wrap around.
#include "ops/elementwise/binary.h"

namespace encore::ops {
namespace {

struct Add {
  template <class T>
  DEVICE_FN T operator()(T a, T b) const {
    return T(a + b);
  }
};
struct Sub {
  template <class T>
  DEVICE_FN T operator()(T a, T b) const {
    return T(a - b);
  }
};
struct Mul {
  template <class T>
  DEVICE_FN T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T> && sizeof(T) < 4)
      return T(uint32_t(a) * uint32_t(b));  // uint16 would be promoted to int, and overflow
    else
      return a * b;
  }
};
struct Slope {
  template <class T>
  DEVICE_FN T operator()(T x, T slope) const {
    return x < T(0) ? x * slope : x;
  }
};
class PRelu : public Binary<Slope, FloatList> {
 public:
  using Binary::Binary;
  void run(Context& context) const override {
    const Shape &x = context.input(0).shape, &slope = context.input(1).shape;
    require(broadcasts_to(slope, x), "the slope, of shape ", slope.str(), ", cannot be broadcast to ", x.str());
    Binary::run(context);
  }
};

}  // namespace

std::vector<OpRow> arithmetic_rows() {
  return {
      binary_row<Add, WordList>("Add", 7, kNumbers),
      binary_row<Sub, WordList>("Sub", 7, kNumbers),
      binary_row<Mul, WordList>("Mul", 7, kNumbers),
      {.name = "PRelu", .since = 7, .types = {in(0, kFloats)}, .make = make<PRelu>, .may_reuse = {{0, 0}}},
  };
}

}  // namespace encore::ops
