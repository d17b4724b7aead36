// Rows that are clipped before they are normalised, by bounds of which the device has two.
#pragma once
#include "device/annotate.h"

namespace encore::ops {

struct RowClip {
  // Numbers of the rows' type, and none is NaN. What lies between stays as it is, and so does NaN.
  struct Bounds {
    float low, high;
    DEVICE_FN float operator()(float x) const { return x < low ? low : x > high ? high : x; }
  };
  Bounds if_so, otherwise;
  const bool* is_so = nullptr;  // null: asks whether any value is infinite
};

}  // namespace encore::ops
