// Rows of a batch of sequences with and without the padding behind each.
#pragma once
#include "ops/attention/inputs/heads.h"

namespace encore::ops {

// to[i] = from[offsets[i]], or with `back` to[offsets[i]] = from[i], where rows that `from` does not have are zeros.
// Offsets out of range are reported and left out.
struct RowMoves {
  const void* from = nullptr;
  void* to = nullptr;
  const int32_t* offsets = nullptr;
  int64_t rows = 0;                    // that there are offsets for
  int64_t from_rows = 0, to_rows = 0;  // that there are
  int64_t width = 0;
  Type type = Type::f32;
  bool back = false;
};
void move_rows(Context& context, const RowMoves& moves);

// How long sequences are, for VisibleKeys; those out of range are cut to `most`.
const int64_t* lengths_of(Context& context, const Sequences& sequences, int64_t batch, int64_t most);

}  // namespace encore::ops
