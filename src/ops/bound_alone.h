// What operators read on the host as a bound, and do without where only the device has it: they go by the room that
// they were given.
#pragma once
#include "ops/op.h"

namespace encore::ops {

bool is_bound_alone(const NodeInfo& node, int input);

}  // namespace encore::ops
