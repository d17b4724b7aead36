// com.microsoft's masks of keys, which are integers of many shapes, and its bias for scores.
#pragma once
#include "ops/attention/dense/attend.h"

namespace encore::ops {

// Adds to `problem` what the mask and the bias say, either of which may be null. Masks, of `past` earlier rows:
//   [batch]                  how many keys there are; 0 stands for all of them
//   [2 * batch]              the ends of the keys, and then their beginnings
//   [3 * batch + 2]          how many keys there are, and what is of no use here
//   [batch, keys], [batch, queries, keys], [batch, 1, most, most]    zero where a key is masked
//   [batch or 1, 1]          no mask
// What is masked has `filter` added to its score: of a query that sees masked keys only, it sees all of them.
void add_masks(Context& context, Attend& problem, const Tensor* mask, const Tensor* bias, float filter);

}  // namespace encore::ops
