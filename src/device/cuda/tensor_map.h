#pragma once
#include "device/tensor_map.h"

namespace encore::device {

struct alignas(64) TensorMap {  // the driver's, which alone knows what is in it
  unsigned char bytes[128];
};

}  // namespace encore::device
