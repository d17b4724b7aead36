// A view of a tensor: it owns nothing.
#pragma once
#include "device/type.h"
#include "ops/shape.h"

namespace encore::ops {

using device::Type;
enum class Where { device, host };

struct Tensor {
  Type type = Type::undefined;
  Where where = Where::device;
  Shape shape;
  void* data = nullptr;

  int64_t count() const { return shape.count(); }
  size_t bytes() const { return device::size_bytes(type, count()); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace encore::ops
