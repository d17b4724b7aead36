// Rotary embedding without tables of cosines and sines: the angle of position p and pair i of n is p * 10000^(-i / n).
#pragma once
#include "ops/attention/inputs/heads.h"

namespace encore::ops {

// Rotates the first `rotated` values of queries and keys, whose halves are pairs, where they are. The first row is at
// position `first`.
void rotate_heads(Context& context, Type type, const Heads& q, const Heads& k, int64_t rotated, int64_t first);

}  // namespace encore::ops
