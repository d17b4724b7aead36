#pragma once
#include "ops/norm/softmax.h"

namespace encore::ops {

// Softmax, or LogSoftmax, along a long axis whose values are not neighbours, by clusters of blocks. False if there are
// none on this GPU, or not for such an axis.
bool softmax_long_middle(StreamRef stream, const Tensor& x, const AxisRows& rows, bool log, const Tensor& y);

}  // namespace encore::ops
