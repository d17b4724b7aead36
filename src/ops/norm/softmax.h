// Softmax for ops which need it on the way.
#pragma once
#include "ops/op.h"

namespace encore::ops {

// Of floating-point values along one axis. y has the shape of x, and may be x.
void log_softmax(StreamRef stream, const Tensor& x, int axis, const Tensor& y);

}  // namespace encore::ops
