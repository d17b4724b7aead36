// Which tensors become longer when a dimension is padded at its end, and whether the rows that were there stay as they
// are: no operator may bring rows of that dimension together.
#pragma once
#include <string>
#include <vector>

#include "fuse/plan.h"

namespace encore::fuse {

// By input and by output of a plan: the axis that is padded, or -1.
struct PaddedAxes {
  std::vector<int> inputs, outputs;
  bool any() const;
};

// Of the dimension that has this name where the plan's inputs have it. Error{not_supported} names the node of which
// nobody knows that it leaves rows apart.
PaddedAxes padded_axes(Plan plan, const std::string& dim);

}  // namespace encore::fuse
