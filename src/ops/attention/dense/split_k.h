// Split-K: keys that are shared out to several blocks, what each leaves of its share, and the way from there to y.
#pragma once
#include "ops/attention/dense/attend_view.h"

namespace encore::ops {

// For each row [batch, head, query] and share the unnormalised sums of the values, the scores' maximum and the total of
// the powers. A share that saw no key has a total of zero, and its sums are not looked at.
struct SplitPartials {
  float* sums;  // [row, share, value]
  float* top;   // [row, share]
  float* total;
  int shares;
};

inline constexpr int64_t kMostSplits = 128;

// How many shares fill the device if a share of all heads takes `blocks`, of which a multiprocessor has room for
// `room`, and a block is worth its while for at least `fewest_keys`.
int64_t splits_for(const Context& context, const Attend& problem, int64_t blocks, int room, int64_t fewest_keys);
// In scratch; nothing for a single share, where blocks write y.
SplitPartials make_partials(Context& context, const Attend& problem, int64_t shares);
void combine_splits(Context& context, const Attend& problem, const SplitPartials& partial);

// y's value from a sum of values and the total of the powers, both with powers of `base`.
DEVICE_FN float normalised(float sum, float total) { return total == 0 ? 0.f : sum / total; }

}  // namespace encore::ops
