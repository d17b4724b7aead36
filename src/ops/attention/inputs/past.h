// What a node has kept of earlier tokens, and where it goes.
#pragma once
#include <cstdint>

#include "device/error.h"

namespace encore::ops {

// Refuses a past that begins where the present does, but has other room than it: `heads` of them in all batches, with
// so many rows each. Rows would lie where others still are.
inline void check_past(int64_t heads, const void* past, int64_t past_rows, const void* present, int64_t rows) {
  require(!past || past != present || past_rows == rows || heads == 1,
          "the past begins where the present does, but has room for ", past_rows, " rows and not for ", rows,
          "; give the present memory of its own");
}

}  // namespace encore::ops
