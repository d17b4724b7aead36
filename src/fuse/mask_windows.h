// Constant masks of attention that are windows, as causal ones are: kernels know by position which keys a query sees.
#pragma once
#include <cstdint>
#include <optional>

#include "fuse/match.h"

namespace encore::fuse {

// How many keys before and behind a query's own position it sees; below zero: all. The last query is at the last key.
struct MaskWindow {
  int64_t before = -1, after = -1;
};
// Of what is added to the scores of halves, the same for all batches and heads: nothing where a key is seen, and what
// leaves no probability where it is not.
std::optional<MaskWindow> window_of(const Tensor& mask, int64_t queries, int64_t keys);

}  // namespace encore::fuse
