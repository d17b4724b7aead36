// Warps of a block, each on its own: for_each_warp(b, f) is a phase of the block in which f(warp, shared) runs once for
// every 32 neighbouring threads. As in a block, warp.lanes([&](int lane) { ... }) opens a phase of the warp, at the end
// of which its lanes meet and no others; code between is the same for all lanes. What a lane keeps is a
// PerThread<T, 32>. warp.apart(f) is such a phase for what lanes keep alone: they do not meet.
//
// Collectives, which find a lane's part by a function of the lane:
//   warp.reduce_columns<kColumns>(value, op)  value(lane), a reference, becomes op over the lanes that are the same
//                                             modulo kColumns
//   warp.scan<kMany>(lanes, zero, value, total, op)
//                                             teams of so many lanes, a power of two: each of the kMany values that
//                                             value(lane) points to becomes op, which is associative, over those of the
//                                             lanes before in its team; total(lane) gets it over the whole team
//   warp.least(value)                         the least of the lanes' values, which are unsigned, for all of them
//   warp.most(value)                          the largest of them, of 32 bits at most
//   warp.sums_before(value)                   value(lane), a reference to an int, becomes the sum of those of the lanes
//                                             before
//   warp.sum(value)                           the sum of the lanes' values, which are int, for all of them
//   warp.votes(value)                         a bit for each lane whose value, a bool, is true, for all of them
//   warp.from(lane, value)                    that lane's value, for all of them
//   warp.exchange<kMany>(mask, value)         each of the kMany values that value(lane) points to becomes that of the
//                                             lane whose number differs in the bits of `mask`
//   warp.transpose(pair)                      of a matrix of 8 x 8 values in 16 bits: pair(lane), a reference, holds
//   row
//                                             lane / 4, columns lane % 4 * 2 and the next, the first in the low bits
//   warp.mma<T>(c, a, b)                      c += a * b, m16n8k16, with c in float: of T, Half or BFloat16. Of floats,
//                                             rounded to TF32, m16n8k8
#pragma once
#include <cstdint>

#include "device/half.h"
#include "device/launch.h"

namespace encore::device {

// What a lane holds of mma's matrices: with g = lane / 4 and two = lane % 4 * 2, and of floats lane % 4 instead of two
// and the next,
struct FragmentA {
  // Rows g, g + 8, g, g + 8; columns two and the next, in the second half of the tile from the third word on.
  uint32_t at[4];
};
struct FragmentB {
  uint32_t at[2];  // column g; rows two and the next, the same in the second half of the tile
};
struct FragmentC {
  float at[4];  // row g, columns two and the next; row g + 8, the same
};

// Two values of T in a word, the first in the low bits.
template <class T>
DEVICE_FN uint32_t as_pair(float low, float high);
// The low or the high halves of two words, as a word.
DEVICE_FN uint32_t low_halves(uint32_t low, uint32_t high);
DEVICE_FN uint32_t high_halves(uint32_t low, uint32_t high);

}  // namespace encore::device

#ifdef __CUDACC__
#include "device/cuda/warp.h"
#else
#include "device/virtual/warp.h"
#endif
