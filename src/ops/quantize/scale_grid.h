// Which scale and zero point an element has: those of the tensor, of its place along an axis, or of a block along it.
#pragma once
#include <cstdint>

#include "device/divide.h"
#include "ops/elementwise/any_type.h"
#include "ops/op.h"

namespace encore::ops {

class ScaleGrid {
 public:
  // `scale` must suit `x`: Error{invalid_input} otherwise. `block_size`: zero if there are no blocks.
  ScaleGrid(const Shape& x, const Shape& scale, int64_t axis, int64_t block_size);

  struct Place {
    int64_t index;              // of the scale
    int64_t outer, at, inside;  // before, along and after the axis
  };
  DEVICE_FN Place place(int64_t element) const {
    Place p{};
    if (single_) return p;
    p.outer = axis_(inner_(element, p.inside), p.at);
    p.index = index_of(p);
    return p;
  }
  // The next element's.
  DEVICE_FN void advance(Place& p) const {
    if (single_) return;
    if (++p.inside < inner_.divisor()) {
      p.index += inner_step_;
      return;
    }
    p.inside = 0;
    if (++p.at == axis_.divisor()) {
      p.at = 0;
      ++p.outer;
    }
    p.index = index_of(p);
  }

 private:
  DEVICE_FN int64_t index_of(const Place& p) const {
    int64_t rest;
    return p.outer * outer_step_ + block_(p.at, rest) * block_step_ + p.inside * inner_step_;
  }

  bool single_ = true;
  device::Divider inner_, axis_, block_;
  int64_t outer_step_ = 0, block_step_ = 0, inner_step_ = 0;
};

// Scales and zero points as kernels see them. They are read again only where they change.
struct Scales {
  AnyInput scale, zero;  // zero.data may be null
  ScaleGrid grid;

  DEVICE_FN float scale_at(int64_t index) const {
    if (scale.type == Type::i32) return float(scale.integers<int32_t, 1>(index).at[0]);
    return scale.floats<1>(index).at[0];
  }
  DEVICE_FN int32_t zero_at(int64_t index) const { return zero.data ? zero.integers<int32_t, 1>(index).at[0] : 0; }
};
// Of the node's inputs 1 and 2; checks their shapes.
Scales scales_of(Context& context, const Tensor& x, int64_t axis, int64_t block_size);

// y[i] = x[i] / scale, rounded and shifted into the range of y's type. x may be integers.
struct QuantizeOptions {
  bool saturate = true;              // of float8
  Type precision = Type::undefined;  // that is divided in; undefined: float
};
void quantize(StreamRef stream, const Tensor& x, const Scales& scales, const Tensor& y, QuantizeOptions options = {});

// y[i] = (x[i] - zero point) * scale. y is float, half or bfloat16; float8 and float4 have no zero points.
void dequantize(StreamRef stream, const Tensor& x, const Scales& scales, const Tensor& y);

}  // namespace encore::ops
