#pragma once
#include "ops/op.h"

namespace encore::ops {

// The first k of each row of numbers in order, as TopK has them: values, and columns in int64; of what is the same, the
// smaller column comes first. k is above zero and not above `columns`.
void topk(Context& context, Type type, bool largest, const void* x, int64_t rows, int64_t columns, int64_t k,
          void* values, void* indices);

}  // namespace encore::ops
