// Which tensors become longer when a dimension is padded at its end, and whether the rows that were there stay as they
// are: no operator may bring rows of that dimension together.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fuse/plan.h"

namespace encore::fuse {

struct PaddedAxes {
  std::vector<int> inputs, outputs;  // by input and by output of a plan: the axis that is padded, or -1
  // Steps that sum along it, the softmaxes of attention, by the type of their scores.
  std::map<Type, std::vector<int>> masked;
  bool any() const;
};

// The symbol of the dimension that has this name where the plan's inputs have it.
std::optional<int64_t> find_dim(const Plan& plan, const std::string& name);

// Of the dimension that has this name where the plan's inputs have it. Error{not_supported} names the node of which
// nobody knows that it leaves rows apart.
PaddedAxes padded_axes(Plan plan, const std::string& dim);

}  // namespace encore::fuse
