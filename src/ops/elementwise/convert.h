// Conversion of elements from any type to any other.
#pragma once
#include <cstdint>

#include "device/stream.h"
#include "device/type.h"

namespace encore::ops {

// y[i] = x[i] for i in [0, n). `saturate`: what a float8 cannot hold becomes its greatest value, else NaN or infinity.
void convert(device::StreamRef stream, int64_t n, device::Type from, const void* x, device::Type to, void* y,
             bool saturate = true);

}  // namespace encore::ops
