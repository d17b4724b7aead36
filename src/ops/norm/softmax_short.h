#pragma once
#include "device/half.h"
#include "device/stream.h"

namespace encore::ops {

// Softmax, or LogSoftmax, of rows of a few halves that are no whole packs. False if they are too long for that; y may
// be x.
template <class T>
bool softmax_short_rows(device::StreamRef stream, const T* x, T* y, int64_t rows, int64_t width, bool log);
extern template bool softmax_short_rows(device::StreamRef, const device::Half*, device::Half*, int64_t, int64_t, bool);
extern template bool softmax_short_rows(device::StreamRef, const device::BFloat16*, device::BFloat16*, int64_t, int64_t,
                                        bool);

}  // namespace encore::ops
