// Sliding-window KV caches, which hold no more than a window: of T positions the last resident(T), in order, from row 0
// on.
#pragma once
#include <cstdint>

#include "ops/op.h"

namespace encore::ops {

// Rows make room for new ones `step` at a time, so that how many there are follows from how many there have been.
struct Residents {
  int capacity = 0;  // none: the cache holds all positions
  int step = 1;

  DEVICE_FN int64_t operator()(int64_t positions) const {
    if (positions <= capacity) return positions < 0 ? 0 : positions;
    const uint32_t beyond = uint32_t(positions - capacity) % uint32_t(step);
    return beyond ? capacity - step + int(beyond) : capacity;
  }
  // How many have gone.
  DEVICE_FN int64_t gone(int64_t positions) const { return positions <= capacity ? 0 : positions - (*this)(positions); }
};

// New rows either find room in the cache, or attention needs some of those that will go, and a stage of capacity + rows
// holds them all for the while.
struct WindowMove {
  enum Way {
    make_room,  // from the past to the present, for one row
    to_stage,   // what the past has
    from_stage  // what is to stay
  };
  Way way = make_room;
  Residents residents;
  const int32_t* last_keys = nullptr;  // of each batch the last position
  int64_t rows = 0;                    // new ones
  bool from_start = false;             // which are the first ones of all

  const void* from[2] = {};  // keys and values: [batch, head, from_capacity, row_bytes]
  void* to[2] = {};          // may be `from`; else the present is zero where it has no rows
  int64_t batch = 0, heads = 0, from_capacity = 0, to_capacity = 0, row_bytes = 0;
  // With the new rows the last key's row, [batch]; or null.
  int32_t* last_rows = nullptr;
};
void move_window(Context& context, const WindowMove& move);

}  // namespace encore::ops
