// Steps that sum along a padded dimension, and leave out of their sums what is added.
#pragma once
#include <string>

#include "fuse/padding.h"

namespace encore::fuse {

// Adds inputs to the plan, one for each mask, in their order. `plan` is of whose nodes the axes were found.
void add_padding_masks(Plan& plan, const PaddedAxes& axes, const std::string& dim);

// A float of any width, to where it lies.
void put_number(Type type, double value, char* to);

}  // namespace encore::fuse
