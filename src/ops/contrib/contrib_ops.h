// The files of this room and their rows.
#pragma once
#include <vector>

#include "ops/registry.h"

namespace encore::ops {

std::vector<OpRow> gelu_rows();             // gelu.cu
std::vector<OpRow> skip_layer_norm_rows();  // skip_layer_norm.cc

}  // namespace encore::ops
