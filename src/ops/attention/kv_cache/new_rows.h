// Where new rows of keys and values go.
#pragma once
#include "device/fault.h"
#include "ops/attention/kv_cache/window_cache.h"

namespace encore::ops {

// Where those of each batch begin: which position that is, and which row of the cache.
struct NewRows {
  const int32_t* last_keys;
  int beyond_last, rows, capacity;
  bool from_start, staged;
  Residents residents;
  DEVICE_FN int64_t last(int64_t batch) const { return int64_t(last_keys[batch]) - beyond_last; }
  DEVICE_FN int64_t begin(int64_t batch) const { return begin_before(last(batch)); }
  DEVICE_FN int64_t begin_before(int64_t last) const { return from_start ? 0 : last + 1 - rows; }
  DEVICE_FN int64_t first_row(int64_t begin) const {
    if (residents.capacity == 0) return begin;
    return staged ? residents(begin) : residents(begin + rows) - rows;
  }
  DEVICE_FN void check(int64_t last, device::FaultRef fault) const {
    const bool bounded = from_start || residents.capacity == 0;
    if (last < (from_start ? 0 : rows - 1) || (bounded && last >= (from_start ? rows : capacity)))
      fault.report(device::FaultKind::bad_value, last, from_start ? rows : capacity);
  }
};

}  // namespace encore::ops
