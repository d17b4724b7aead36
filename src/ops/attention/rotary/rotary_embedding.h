// Rotary position embedding: pairs of a head's values rotated by angles that depend on the position.
#pragma once
#include <cstdint>

#include "device/annotate.h"
#include "ops/op.h"

namespace encore::ops {

// Which of several positions of a token a pair is rotated to.
struct PositionStreams {
  int count = 1;           // or 3
  int pairs[3] = {};       // of each; neighbours
  bool alternate = false;  // or every third one of the second and third stream, and the first has what is left
  float scale = 1;         // of cosines and sines

  DEVICE_FN int of(int pair) const {
    if (!alternate) return pair < pairs[0] ? 0 : pair < pairs[0] + pairs[1] ? 1 : 2;
    const int stream = pair % 3;
    return pair / 3 < pairs[stream] ? stream : 0;
  }
};

// x and y are contiguous, [batch, head, row, size] or with `flat` [batch, row, head, size], and may be the same memory.
struct Rotation {
  Type type = Type::f32;
  const void* x = nullptr;
  void* y = nullptr;
  int64_t batch = 0, heads = 0, rows = 0, size = 0;
  bool flat = false;
  int64_t rotated = 0;                        // how many values of a head: even; the rest stays
  bool interleaved = false;                   // pairs are neighbours, else half of `rotated` apart
  const void *cos = nullptr, *sin = nullptr;  // [position, rotated / 2]
  int64_t positions = 0;
  const int64_t* position_ids = nullptr;  // [stream, batch, row]; null: position batch * rows + row
  bool one_id = false;                    // there is but one, for row 0: others follow
  PositionStreams streams;
};
void rotate(Context& context, const Rotation& rotation);

// The attributes that all nodes of rotary embedding have.
struct RotaryAttributes {
  // `cos_cache` is the index of that input; sin_cache is the next one.
  RotaryAttributes(const NodeInfo& node, int cos_cache);

  bool interleaved;
  int64_t rotated;  // 0: all of a head
  int64_t heads;    // 0 if it isn't said
};

}  // namespace encore::ops
