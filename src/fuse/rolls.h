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
// A Concat along the last axis of the second half of x, negated, and its first one.
struct TurnedPairs {
  int x;
  std::vector<int> cuts;   // steps that cut it apart
  std::vector<int> steps;  // the Concat, and those before of which nobody else reads
};
std::optional<TurnedPairs> halves_turned_by(const Match& match, int concat);
// Of the second of each two neighbours, negated, and the first one; the Concat's axis is one more.
std::optional<TurnedPairs> pairs_turned_by(const Match& match, int concat);

bool is_roll(const Step& step);
Rolled rolled_by(const Step& roll);

}  // namespace encore::fuse
