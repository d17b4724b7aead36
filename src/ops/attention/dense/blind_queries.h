#pragma once
#include "ops/attention/dense/attend.h"

namespace encore::ops {

// Whether there may be a query that sees no key, the mask aside.
inline bool may_be_blind(const VisibleKeys& visible, int64_t queries, int64_t keys) {
  const int64_t first = visible.from_end ? keys - queries : visible.offset, last = first + queries - 1;
  return visible.has_lengths() || (visible.before >= 0 && last - visible.before >= keys) ||
         (visible.after >= 0 && visible.after < -first);
}

}  // namespace encore::ops
