// What of values side by side a lane gives to tile products (warp.h), where they lie along the depth as all rows want
// them: which of them are which of a tile's is free as long as both factors agree.
#pragma once
#include "device/warp.h"
#include "device/words.h"

namespace encore::device {

// Eight values of 16 bits along the depth are a lane's parts of two products. Of rows g and g + 8, g = lane / 4, its
// part of a half of the depth:
DEVICE_FN LeftTile left_of(const Pack<uint32_t, 4>& low, const Pack<uint32_t, 4>& high, int half) {
  return {{low.at[2 * half], high.at[2 * half], low.at[2 * half + 1], high.at[2 * half + 1]}};
}
// Of column g:
DEVICE_FN RightTile right_of(const Pack<uint32_t, 4>& words, int half) {
  return {{words.at[2 * half], words.at[2 * half + 1]}};
}
// Of two neighbouring values, rows g and g + 8, at each of four places along the depth:
DEVICE_FN LeftTile left_of(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return {{low_halves(a, b), high_halves(a, b), low_halves(c, d), high_halves(c, d)}};
}

// Where the i-th sum of a lane is.
DEVICE_FN int sum_row(int lane, int i) { return lane / 4 + i / 2 * 8; }
DEVICE_FN int sum_column(int lane, int i) { return lane % 4 * 2 + i % 2; }
// Where along the depth the i-th value of a lane is.
DEVICE_FN int depth_of(int lane, int i) { return lane % 4 * 2 + i % 2 + i / 2 * 8; }

}  // namespace encore::device
