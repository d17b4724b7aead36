// What Scan says of its inputs and outputs.
#pragma once
#include <vector>

#include "ops/op.h"

namespace encore::ops {

// Which of so many the attribute has from the last to the first; without it, none.
std::vector<bool> scanned_backward(const NodeInfo& node, const char* attribute, size_t count);

}  // namespace encore::ops
