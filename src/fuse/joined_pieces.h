// What a Concat puts side by side, read where it is.
#pragma once
#include <optional>
#include <vector>

#include "fuse/match.h"

namespace encore::fuse {

// A value, or a part of one along the axis that the pieces are joined along.
struct Piece {
  int of;
  int64_t begin = 0, end = -1;

  bool is_part() const { return end >= 0; }
};
struct Pieces {
  int axis;  // counted from the end, and so negative
  std::vector<Piece> all;
};
// Those of the Concat, if its axis is known. What only Concats along the same one read of a wider value is a part.
std::optional<Pieces> pieces_of(const Match& match, int concat);

}  // namespace encore::fuse
