#pragma once
#include "ops/attention/dense/attend.h"

namespace encore::ops {

// Whether there may be a query that sees no key, the mask aside.
inline bool may_be_blind(const Sight& sight, int64_t queries, int64_t keys) {
  const int64_t first = sight.from_end ? keys - queries : sight.offset, last = first + queries - 1;
  return sight.has_lengths() || (sight.before >= 0 && last - sight.before >= keys) ||
         (sight.after >= 0 && first + sight.after < 0);
}

}  // namespace encore::ops
