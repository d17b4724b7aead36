// Room for outputs of which only the device knows how long they are, in runs that do not wait for it.
#pragma once
#include "ops/op.h"

namespace encore::ops {

struct Room {
  Tensor parts;    // one behind the other, along a first dimension of their own: as many as there is room for
  int64_t* count;  // where the device says how many there are; -1: the run was in vain, as there is no room for all
};

struct Parts {
  Shape each;
  Shape of_none;  // of the output, if there is no part
  int64_t most;   // there are no more, for all that the host knows
};

// A run whose caller gives out, when it is over, as much as there is.
class HasRoom {
 public:
  virtual ~HasRoom() = default;
  virtual Room room(int output, const Parts& parts) = 0;
};

inline Room room_in(Context& run, int output, const Parts& parts) {
  auto* const has_room = dynamic_cast<HasRoom*>(&run);
  if (!has_room) fail(Code::capture_forbidden, "data decides how much a loop collects, and nobody fetches that");
  return has_room->room(output, parts);
}

}  // namespace encore::ops
