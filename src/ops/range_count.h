// How many numbers Range makes, wherever it is computed.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace encore::ops {

// The step is not zero. Where there would be more, it is the largest number.
inline int64_t range_count(int64_t first, int64_t limit, int64_t step) {
  if (step > 0 ? first >= limit : first <= limit) return 0;
  const uint64_t way = step > 0 ? uint64_t(limit) - uint64_t(first) : uint64_t(first) - uint64_t(limit);
  const uint64_t each = step > 0 ? uint64_t(step) : 0 - uint64_t(step);
  return int64_t(std::min((way - 1) / each, uint64_t(INT64_MAX) - 1)) + 1;
}
inline int64_t range_count(double first, double limit, double step) {
  const double count = std::ceil((limit - first) / step);
  return count >= 0x1p63 ? INT64_MAX : count > 0 ? int64_t(count) : 0;  // NaN gives none
}

}  // namespace encore::ops
