// Indices along an axis to whose end rows have been added, where they point to what they did without.
#pragma once
#include <memory>

#include "ops/op.h"

namespace encore::ops {

// Of data, indices, how many rows there were and how many are added (i64[2], zeros if none are), and what goes along
// the axis of what indices are a sum of, if not all of it does. Attributes: `axis` of the data; `rows`, the axis of the
// indices that has the rows, too, or -1; `tuples`, whether indices are those of a GatherND.
// An index that was out of range still is. Those of rows that are added are zero.
std::unique_ptr<Op> make_padded_indices(const NodeInfo& node);

}  // namespace encore::ops
