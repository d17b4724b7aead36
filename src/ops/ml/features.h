// What models of ai.onnx.ml read: rows of numbers of four types.
#pragma once
#include "ops/registry.h"

namespace encore::ops {

inline constexpr const char* kMl = "ai.onnx.ml";
inline constexpr Types kFeatures{Type::f32, Type::f64, Type::i32, Type::i64};

struct Features {
  const void* data;
  Type type;

  explicit Features(const Tensor& x) : data(x.data), type(x.type) {}
  template <class T>
  DEVICE_FN T at(int64_t i) const {
    switch (type) {
      case Type::f64: return T(static_cast<const double*>(data)[i]);
      case Type::i32: return T(static_cast<const int32_t*>(data)[i]);
      case Type::i64: return T(static_cast<const int64_t*>(data)[i]);
      default: return T(static_cast<const float*>(data)[i]);
    }
  }
};

// A vector is one row.
struct FeatureRows {
  int64_t rows, width;
  explicit FeatureRows(const Shape& x) {
    require(x.rank() == 1 || x.rank() == 2, "the input has shape ", x.str(), "; rows of features are wanted");
    rows = x.rank() == 1 ? 1 : x[0];
    width = x.back();
  }
};

}  // namespace encore::ops
