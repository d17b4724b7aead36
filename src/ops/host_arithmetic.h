// What models compute shapes with, in host memory: for runs of several operators among which these are.
#pragma once
#include <memory>

#include "ops/op.h"

namespace encore::ops {

// All of its inputs and outputs are in host memory, and it launches nothing. Null if there is none for the node.
std::unique_ptr<Op> make_host_op(const NodeInfo& node);

}  // namespace encore::ops
