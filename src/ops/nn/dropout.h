// Dropout's kernel: zeros for values picked at random.
#pragma once
#include "ops/op.h"
#include "ops/random/runs.h"

namespace encore::ops {

// y = x / (1 - ratio) where a value is kept; `ratio` of the values, below 1, become zero. `mask` says where, one byte a
// value; it may be null. x may be y.
void apply_dropout(Context& context, const RandomRuns& runs, float ratio, const Tensor& x, const Tensor& y,
                   uint8_t* mask);

// What Dropout's inputs in host memory say: training_mode, and ratio, of which 1 is too much.
bool drops_at_random(const Tensor& training_mode);
float dropout_ratio(const Tensor& ratio);

}  // namespace encore::ops
