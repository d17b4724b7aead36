// A resizing's dimensions, as its kernels have them.
#pragma once
#include <span>

#include "device/device.h"
#include "device/divide.h"
#include "ops/nn/resize_place.h"

namespace encore::ops {

// Neighbours that stay as they are count as one.
struct ResizeDim {
  device::Divider out;
  int64_t stride;  // in the input
  bool resized;
  ResizeAxis axis;
};

DEVICE_FN int clamped(int at, int size) { return at < 0 ? 0 : at < size ? at : size - 1; }

// As an int that neighbours can be counted from. NaN, from a region of NaN or infinity, is 0, as on the CPU.
template <class C>
DEVICE_FN int whole(C position) {
  constexpr int kMost = 0x7ffffff0;
  if (position < C(kMost)) return position > C(-kMost) ? int(position) : -kMost;
  return position >= C(kMost) ? kMost : 0;
}

// Where a value comes from is the same in all planes, pictures of one channel or batches of them: a thread has several
// of these. How many, if it would be `threads` for one plane: few, as long as there is too little to do.
inline int planes_of_a_thread(StreamRef stream, int64_t threads, int64_t planes) {
  constexpr int64_t kBusy = 1024;  // threads for each multiprocessor
  const int64_t wanted = kBusy * device::multiprocessors(stream.device());
  int each = 8;
  while (each > 1 && threads * ((planes + each - 1) / each) < wanted) each /= 2;
  return each;
}

// Linear or cubic, where any dimension is resized; throws Error{not_supported} for more than three, or two if cubic.
// Rows of y, of the last one of `dims`, are `row_width` elements apart.
void interpolate(StreamRef stream, const ResizeRule& rule, std::span<const ResizeDim> dims, const Tensor& x,
                 const Tensor& y, int64_t row_width);

}  // namespace encore::ops
