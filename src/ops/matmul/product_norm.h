// A product by a constant matrix and the norm of the rows that it makes.
#pragma once
#include <memory>

#include "ops/op.h"

namespace encore::ops {

// Inputs are A, B, a bias of the product, a residual, which is added to the rows, scale and bias of the norm, a bias
// added beside the residual, and what is added to the result; all but A, the residual and the last one are constants of
// the model, and A, B and scale are there. The result has the residual's shape. Of halves scale and bias of the norm
// may be float. Output 1 is what is normalised, rounded, if it is wanted. Attributes: alpha and transB of the product,
// epsilon and kCentred of the norm.
std::unique_ptr<Op> make_product_norm(const NodeInfo& node);

inline constexpr int kBehindProductNorm = 7;        // the last input
inline constexpr const char* kCentred = "centred";  // 0: the mean is taken as zero

}  // namespace encore::ops
