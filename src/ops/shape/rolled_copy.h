// A copy of what is seen as a tensor, read from elsewhere on along some of its axes, and then seen otherwise again.
#pragma once
#include <cstddef>
#include <vector>

#include "device/stream.h"
#include "ops/shape/strided_view.h"

namespace encore::ops {

inline constexpr size_t kMostRolledAxes = 4;

// An axis, counted from the end, and from where on it is read, as a tensor of this shape has it.
struct Roll {
  int64_t axis, shift;
};

// Whether one copy can read, or write, by the view: neighbours stay neighbours, and its steps are few.
bool suits_rolled_copy(const StridedView& view);
// `from` has the elements of a tensor, and `order` is a view of that tensor, or of a part, when it is rolled and dense.
void copy_rolled(device::StreamRef stream, const void* in, const StridedView& from, const std::vector<Roll>& rolls,
                 const StridedView& order, void* out, size_t bytes);

}  // namespace encore::ops
