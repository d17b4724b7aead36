// Tensors of 8-bit integers that have one scale and one zero point, as com.microsoft's QLinear operators have them.
#pragma once
#include <cmath>
#include <cstdint>

#include "ops/op.h"

namespace encore::ops {

struct LinearBytes {
  const float* scale = nullptr;
  const uint8_t* zero = nullptr;  // null: zero
  bool is_signed = false;

  // Of the inputs with these numbers, of which the second may be absent; checks that they are single values.
  static LinearBytes of(Context& context, Type type, int scale_input, int zero_input, const char* what) {
    const Tensor& scale = context.input(scale_input);
    const Tensor* const zero = context.find_input(zero_input);
    require(scale.type == Type::f32 && scale.shape.is_scalar(), what, "'s scale has shape ", scale.shape.str(), " of ",
            device::name(scale.type), "; one float is wanted");
    if (zero)
      require(zero->type == type && zero->shape.is_scalar(), what, "'s zero point has shape ", zero->shape.str(),
              " of ", device::name(zero->type), "; one value of ", device::name(type), " is wanted");
    return {scale.as<const float>(), zero ? zero->as<const uint8_t>() : nullptr, type == Type::i8};
  }

  DEVICE_FN int whole(uint8_t bits) const { return is_signed ? int(int8_t(bits)) : int(bits); }
  DEVICE_FN int zero_point() const { return zero ? whole(*zero) : 0; }
  DEVICE_FN int least() const { return is_signed ? -128 : 0; }
  // NaN becomes the least.
  DEVICE_FN uint8_t kept_in_range(float whole) const {
    const float low = float(least()), high = low + 255.f;
    whole = whole > low ? whole : low;
    return uint8_t(int(whole < high ? whole : high));
  }
  DEVICE_FN float value(uint8_t bits) const { return *scale * float(whole(bits) - zero_point()); }
  DEVICE_FN uint8_t quantized(float value) const { return kept_in_range(rint(value / *scale) + float(zero_point())); }
};

// y[image, channel] = the mean of x's plane, of which the values are neighbours, or `channels` apart.
void average_planes(StreamRef stream, const Tensor& x, const LinearBytes& from, int64_t images, int64_t channels,
                    int64_t plane, bool channels_last, const Tensor& y, const LinearBytes& to);

}  // namespace encore::ops
