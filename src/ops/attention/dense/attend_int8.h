// Attention of 8-bit integers, whose scores and probabilities are brought back to 8 bits on the way, each by its scale.
#pragma once
#include "ops/op.h"

namespace encore::ops {

// Which keys a query sees, of [batch, query, key] by strides: those that are not zero, or a range of each batch.
struct Int8Mask {
  const int32_t* flags = nullptr;
  int64_t batch = 0, query = 0;
  const int32_t *ends = nullptr, *starts = nullptr;  // of each batch; null: none
  bool causal = false;
};

// q, k, v and y are [batch, row, head, size].
struct AttendInt8 {
  const int8_t *q, *k, *v;
  int8_t* y;
  int64_t batch, heads, rows, size;
  float to_score;     // from a product of q and k to a score of 8 bits
  float power;        // e^power is the factor from a score to the next one
  float probability;  // the scale of probabilities
  float to_y;         // from a product of probabilities and v to y
  Int8Mask mask;
};

// A query that sees no key gets zeros.
void attend_int8(Context& context, const AttendInt8& problem);

}  // namespace encore::ops
