// The files of this room and their rows; conv.cc stands for itself.
#pragma once
#include <vector>

#include "ops/registry.h"

namespace encore::ops {

std::vector<OpRow> window_pool_rows();  // pool.cu: MaxPool, AveragePool
std::vector<OpRow> global_pool_rows();  // global_pool.cu
std::vector<OpRow> batch_norm_rows();   // batch_norm.cu
std::vector<OpRow> resize_rows();       // resize.cc: Resize, Upsample
std::vector<OpRow> dropout_rows();      // dropout.cc

}  // namespace encore::ops
