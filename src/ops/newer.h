// What operators have had since schemas newer than those that Encore's were written to. Contrib operators grow without
// a new version, so nothing else tells.
#pragma once
#include <string>

#include "ops/op.h"

namespace encore::ops {

// What the node uses of it, which the operator would compute without; or an empty string.
std::string why_too_new(const NodeInfo& node);

}  // namespace encore::ops
