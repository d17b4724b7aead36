#pragma once
#include "fuse/plan.h"

namespace encore::fuse {

// Whether it is attention as fusion makes it (ops/attention/operators/viewed_attention.h).
inline bool is_viewed_attention(const Step& step) {
  return step.node && step.make && step.node->op_type() == "Attention" && step.node->domain() == kFusions;
}

}  // namespace encore::fuse
