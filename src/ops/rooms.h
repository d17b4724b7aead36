// The lists of operators, one a room.
#pragma once
#include <vector>

#include "ops/registry.h"

namespace encore::ops {

std::vector<OpRow> unary_rows();    // elementwise/: one input
std::vector<OpRow> binary_rows();   // elementwise/: two or more inputs, comparisons, logic
std::vector<OpRow> cast_rows();     // elementwise/
std::vector<OpRow> shape_rows();    // shape/: views and movement
std::vector<OpRow> index_rows();    // index/: gather and scatter
std::vector<OpRow> matmul_rows();   // matmul/
std::vector<OpRow> conv_rows();     // nn/: convolutions
std::vector<OpRow> pool_rows();     // nn/: pooling, batch normalisation, resize, dropout
std::vector<OpRow> norm_rows();     // norm/: softmax and layer normalisation
std::vector<OpRow> reduce_rows();   // reduce/
std::vector<OpRow> control_rows();  // control/: If, Loop and Scan
std::vector<OpRow> contrib_rows();  // contrib/: com.microsoft

inline constexpr std::vector<OpRow> (*kRooms[])() = {
    unary_rows, binary_rows, cast_rows, shape_rows,  index_rows,   matmul_rows,
    conv_rows,  pool_rows,   norm_rows, reduce_rows, control_rows, contrib_rows,
};

}  // namespace encore::ops
