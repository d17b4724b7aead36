// Split-K: keys that are shared out to several blocks, what each leaves of its share, and the way from there to y.
#pragma once
#include "ops/attention/dense/attend_view.h"

namespace encore::ops {

// For each row [batch, head, query] and share of its keys the accumulators, the scores' maximum and the sum of the
// exponentials over it. A share that saw no key has a sum of zero, and its accumulators are not looked at.
struct SplitPartials {
  float* acc;      // [row, share, value]
  float* row_max;  // [row, share]
  float* row_sum;
  int shares;
};

inline constexpr int64_t kMostSplits = 128;

// How many shares fill the device if a share of all heads takes `blocks`, of which a multiprocessor has room for
// `room`, and a block is worth its while for at least `fewest_keys`.
int64_t splits_for(const Context& context, const Attend& problem, int64_t blocks, int room, int64_t fewest_keys);
// In scratch; nothing for a single share, where blocks write y.
SplitPartials make_partials(Context& context, const Attend& problem, int64_t shares);
void combine_splits(Context& context, const Attend& problem, const SplitPartials& partial);

// y's value from an accumulator and the sum of the exponentials, both over the same maximum.
DEVICE_FN float normalised(float sum, float row_sum) { return row_sum == 0 ? 0.f : sum / row_sum; }

}  // namespace encore::ops
