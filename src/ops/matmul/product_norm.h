// A product by a constant matrix and the norm of the rows that it makes.
#pragma once
#include <memory>

#include "ops/op.h"

namespace encore::ops {

// All inputs but A, the residual and what is behind are constants of the model; A, B and scale are there. The result
// has the residual's shape. Of halves scales and bias of norms may be float. Output 1 is what is normalised, rounded,
// if it is wanted. Attributes: alpha and transB of the product, epsilon and kCentred of the norm, and kEpsilonAhead.
struct ProductNormInputs {
  enum Input {
    kA,
    kB,
    kBias,      // of the product
    kResidual,  // added to its rows
    kGamma,
    kBeta,
    kAdded,   // a bias added beside the residual
    kBehind,  // added to the result
    kAhead    // the scale of a norm of the product's rows, without their mean; then there is a residual, and no bias
  };
};
std::unique_ptr<Op> make_product_norm(const NodeInfo& node);

inline constexpr const char* kEpsilonAhead = "epsilon_ahead";
inline constexpr const char* kCentred = "centred";  // 0: the mean is taken as zero

}  // namespace encore::ops
