// Attention that leaves out of its sums the keys that padding adds.
#pragma once
#include <string>
#include <vector>

#include "fuse/padding.h"

namespace encore::fuse {

// Adds inputs to the plan, one for each type of scores, in their order: zeros for keys that were there, and -infinity
// for others. `plan` is of whose nodes the axes were found.
void add_softmax_masks(Plan& plan, const PaddedAxes& axes, const std::string& dim);

}  // namespace encore::fuse
