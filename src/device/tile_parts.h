// What a lane gives to tile products (warp.h) of values that it has read side by side. Which of them are which of a
// tile's along the depth is free, as long as both factors agree.
#pragma once
#include "device/warp.h"
#include "device/words.h"

namespace encore::device {

// Eight values along the depth are a lane's parts of two products, `half` 0 and 1. From rows g and g + 8, with
// g = lane / 4:
DEVICE_FN LeftTile left_of(const Pack<uint32_t, 4>& low, const Pack<uint32_t, 4>& high, int half) {
  return {{low.at[2 * half], high.at[2 * half], low.at[2 * half + 1], high.at[2 * half + 1]}};
}
// From column g:
DEVICE_FN RightTile right_of(const Pack<uint32_t, 4>& words, int half) {
  return {{words.at[2 * half], words.at[2 * half + 1]}};
}
// From four places along the depth, of which each is a word: a value of row g and one of row g + 8.
DEVICE_FN LeftTile left_of(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return {{low_halves(a, b), high_halves(a, b), low_halves(c, d), high_halves(c, d)}};
}

// Where the i-th sum of a lane is.
DEVICE_FN int sum_row(int lane, int i) { return lane / 4 + i / 2 * 8; }
DEVICE_FN int sum_column(int lane, int i) { return lane % 4 * 2 + i % 2; }
// Where along the depth the i-th value of a lane is.
DEVICE_FN int depth_of(int lane, int i) { return lane % 4 * 2 + i % 2 + i / 2 * 8; }

}  // namespace encore::device
