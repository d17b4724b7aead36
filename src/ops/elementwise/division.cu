// Division and remainders. An integer divided by zero is a fault, and gives 0.
#include <cmath>

#include "ops/choice.h"
#include "ops/elementwise/binary.h"
#include "ops/elementwise/scalar_functions.h"

namespace encore::ops {
namespace {

using device::FaultKind;
using device::FaultRef;

struct Division : scalar::Quotient {
  static constexpr FaultKind kFault = FaultKind::divide_by_zero;
  FaultRef fault;

  template <class T>
  DEVICE_FN bool is_bad(T, T divisor) const {
    return std::is_integral_v<T> && divisor == T(0);
  }
};
struct Remainder : scalar::Remainder {
  static constexpr FaultKind kFault = FaultKind::divide_by_zero;
  FaultRef fault;

  Remainder() = default;
  explicit Remainder(const NodeInfo& node) : scalar::Remainder{read_flag(node, "fmod", false)} {
    if (!like_dividend && kFloats.has(node.input_type(0)) && node.since_version() < 28)
      fail(
          Code::not_supported,
          "attribute fmod is 0 and the inputs are floating-point numbers: before opset 28 ONNX wants fmod=1 for these");
  }
  template <class T>
  DEVICE_FN bool is_bad(T, T divisor) const {
    return std::is_integral_v<T> && divisor == T(0);
  }
  template <class T>
  DEVICE_FN T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return scalar::Remainder::operator()(a, b);
    } else {
      const T rest = std::fmod(a, b);
      if (like_dividend || rest != rest) return rest;
      if (rest == T(0)) return std::copysign(rest, b);
      return (rest < T(0)) != (b < T(0)) ? rest + b : rest;
    }
  }
};

}  // namespace

std::vector<OpRow> division_rows() {
  return {
      binary_row<Division, NumberList>("Div", 1, kNumbers),
      binary_row<Remainder, NumberList>("Mod", 10, kNumbers),
  };
}

}  // namespace encore::ops
