// What this library was compiled for, which nvcc alone knows, and what devices are.
#pragma once
#include "device/architectures.h"

namespace encore::device::cuda {

const Architectures& built_for();
// 900 is 9.0; zero if the device can't say.
int capability(int device);

}  // namespace encore::device::cuda
