// Rotary position embedding: pairs of a head's values turned by angles that depend on the position.
#pragma once
#include <cstdint>

#include "ops/op.h"

namespace encore::ops {

// x and y are contiguous, [batch, head, row, size] or with `flat` [batch, row, head, size], and may be the same memory.
struct Rotation {
  Type type = Type::f32;
  const void* x = nullptr;
  void* y = nullptr;
  int64_t batch = 0, heads = 0, rows = 0, size = 0;
  bool flat = false;
  int64_t turned = 0;                         // how many values of a head: even; the rest stays
  bool interleaved = false;                   // pairs are neighbours, else half of `turned` apart
  const void *cos = nullptr, *sin = nullptr;  // [position, turned / 2]
  int64_t positions = 0;
  const int64_t* position_ids = nullptr;  // [batch, row]; null: position batch * rows + row
};
void rotate(Context& context, const Rotation& rotation);

}  // namespace encore::ops
