// Fragments of Warp::mma() (warp.h), made of values that a lane has read side by side. Which of them are which of a
// tile's along k is free, as long as A and B agree.
#pragma once
#include "device/warp.h"
#include "device/words.h"

namespace encore::device {

// Eight values along k are fragments of two products, `half` 0 and 1. Of rows g and g + 8, with g = lane / 4:
DEVICE_FN FragmentA fragment_a(const Pack<uint32_t, 4>& low, const Pack<uint32_t, 4>& high, int half) {
  return {{low.at[2 * half], high.at[2 * half], low.at[2 * half + 1], high.at[2 * half + 1]}};
}
// Of column g:
DEVICE_FN FragmentB fragment_b(const Pack<uint32_t, 4>& words, int half) {
  return {{words.at[2 * half], words.at[2 * half + 1]}};
}
// Of four places along k, of which each is a word: a value of row g and one of row g + 8.
DEVICE_FN FragmentA fragment_a(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return {{low_halves(a, b), high_halves(a, b), low_halves(c, d), high_halves(c, d)}};
}

// Where the i-th value of a lane's FragmentC is.
DEVICE_FN int c_row(int lane, int i) { return lane / 4 + i / 2 * 8; }
DEVICE_FN int c_column(int lane, int i) { return lane % 4 * 2 + i % 2; }
// Where along k the i-th value of a lane's FragmentA or FragmentB is.
DEVICE_FN int k_of(int lane, int i) { return lane % 4 * 2 + i % 2 + i / 2 * 8; }

}  // namespace encore::device
