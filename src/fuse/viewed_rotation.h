#pragma once
#include "fuse/plan.h"

namespace encore::fuse {

// Whether it is a rotation as fusion makes it (ops/attention/rotary/viewed_rotation.h).
inline bool is_viewed_rotation(const Step& step) {
  return step.node && step.make && step.node->op_type() == "Rotation" && step.node->domain() == kFusions;
}

}  // namespace encore::fuse
