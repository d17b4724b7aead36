// Trigonometric and hyperbolic functions; Tanh is among the activations. Outside of their domain they are NaN.
#include <cmath>

#include "ops/elementwise/unary.h"

namespace encore::ops {
namespace {

struct Sin {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::sin(x);
  }
};
struct Cos {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::cos(x);
  }
};
struct Tan {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::tan(x);
  }
};
struct Asin {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::asin(x);
  }
};
struct Acos {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::acos(x);
  }
};
struct Atan {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::atan(x);
  }
};
struct Sinh {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::sinh(x);
  }
};
struct Cosh {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::cosh(x);
  }
};
struct Asinh {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::asinh(x);
  }
};
struct Acosh {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::acosh(x);
  }
};
struct Atanh {
  template <class T>
  DEVICE_FN T operator()(T x) const {
    return std::atanh(x);
  }
};

}  // namespace

std::vector<OpRow> trigonometry_rows() {
  return {
      unary_row<Sin, FloatList>("Sin", 7, kFloats),     unary_row<Cos, FloatList>("Cos", 7, kFloats),
      unary_row<Tan, FloatList>("Tan", 7, kFloats),     unary_row<Asin, FloatList>("Asin", 7, kFloats),
      unary_row<Acos, FloatList>("Acos", 7, kFloats),   unary_row<Atan, FloatList>("Atan", 7, kFloats),
      unary_row<Sinh, FloatList>("Sinh", 9, kFloats),   unary_row<Cosh, FloatList>("Cosh", 9, kFloats),
      unary_row<Asinh, FloatList>("Asinh", 9, kFloats), unary_row<Acosh, FloatList>("Acosh", 9, kFloats),
      unary_row<Atanh, FloatList>("Atanh", 9, kFloats),
  };
}

}  // namespace encore::ops
