// Gathers of embeddings, sums and a norm that fusion has made one.
#pragma once
#include <memory>

#include "ops/op.h"

namespace encore::ops {

// Inputs are the norm's scale and bias, rows of the summands' type or float, of which the bias may be absent, and then
// for each summand, of which there are up to kMostEmbeddings, what is added, and ids if that is a table. All summands
// have the result's last dimensions, or ones before these. Output 1 is the sum. Attributes: epsilon, kCentred, and
// kFactors of the summands.
std::unique_ptr<Op> make_embedding_norm(const NodeInfo& node);

inline constexpr const char* kFactors = "factors";

}  // namespace encore::ops
