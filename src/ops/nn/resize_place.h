// Where the result of a resizing lies in its input, for kernels.
#pragma once
#include <limits>
#include <type_traits>

#include "device/annotate.h"
#include "device/rounded.h"
#include "ops/nn/resize.h"

namespace encore::ops {

// Where position `at` of the result lies in the input. Every operation and its order matter: at ties a last bit
// decides.
template <class C>
DEVICE_FN C original(CoordinateMode coordinates, const ResizeAxis& axis, int64_t at) {
  const C x = C(at), scale = C(axis.scale);
  switch (coordinates) {
    case CoordinateMode::asymmetric: return x / scale;
    case CoordinateMode::pytorch_half_pixel: return axis.out > 1 ? (x + C(0.5)) / scale - C(0.5) : C(0);
    case CoordinateMode::tf_half_pixel_for_nn: return (x + C(0.5)) / scale;
    case CoordinateMode::align_corners: return axis.out == 1 ? C(0) : x * C(axis.in - 1) / C(axis.out - 1);
    case CoordinateMode::tf_crop_and_resize: {
      const C start = C(axis.roi_start), end = C(axis.roi_end), last = C(axis.in - 1);
      return axis.out > 1 ? device::rounded_product(start, last) + (x * (end - start) * last) / C(axis.out - 1)
                          : C(0.5) * (start + end) * last;
    }
    case CoordinateMode::half_pixel_symmetric: {
      const C adjustment = C(axis.out) / (scale * C(axis.in)),
              offset = device::rounded_product(C(axis.in) / C(2), C(1) - adjustment);
      return offset + (x + C(0.5)) / scale - C(0.5);
    }
    default: return (x + C(0.5)) / scale - C(0.5);
  }
}

template <class C>
DEVICE_FN bool is_outside(CoordinateMode coordinates, const ResizeAxis& axis, C position) {
  return coordinates == CoordinateMode::tf_crop_and_resize && (position < C(0) || position > C(axis.in - 1));
}

// What comes nearest to a number among the elements of a type.
template <class T>
T nearest_element(float value) {
  if constexpr (std::is_integral_v<T>) {
    if (!(value > float(std::numeric_limits<T>::lowest()))) return std::numeric_limits<T>::lowest();
    if (value >= float(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  }
  return T(value);
}

}  // namespace encore::ops
