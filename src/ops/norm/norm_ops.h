// The files of this room and their rows.
#pragma once
#include <vector>

#include "ops/registry.h"

namespace encore::ops {

std::vector<OpRow> softmax_rows();     // softmax.cu
std::vector<OpRow> layer_norm_rows();  // layer_norm.cc

}  // namespace encore::ops
