// A step that reads its input from elsewhere on along some axes, and then from 0.
#pragma once
#include <map>
#include <optional>
#include <vector>

#include "fuse/passes.h"

namespace encore::fuse {

struct Rolled {
  int from;                       // a value
  std::map<int, int64_t> shifts;  // by axis, counted from the end
  bool operator==(const Rolled&) const = default;
};
// A Concat of the second half of x, negated, and its first one, along the last axis.
struct TurnedHalves {
  int x;
  std::vector<int> cuts;  // steps that cut it apart
  int negation;           // one of what only that reads
};
std::optional<TurnedHalves> halves_turned_by(const Match& match, int concat);

bool is_roll(const Step& step);
Rolled rolled_by(const Step& roll);

}  // namespace encore::fuse
