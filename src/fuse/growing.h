// Which dimensions of a plan's inputs may be longer than they are, and no output changes: those of masks that are
// summed up, and whose length is wanted as a bound alone.
#pragma once
#include <vector>

#include "fuse/plan.h"
#include "ops/growing.h"

namespace encore::fuse {

std::vector<ops::GrowingDim> growing_dims(Plan plan);

}  // namespace encore::fuse
