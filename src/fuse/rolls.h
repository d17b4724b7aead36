// A step that reads its input from elsewhere on along some axes, and then from 0.
#pragma once
#include <map>

#include "fuse/passes.h"

namespace encore::fuse {

struct Rolled {
  int from;                       // a value
  std::map<int, int64_t> shifts;  // by axis, counted from the end
  bool operator==(const Rolled&) const = default;
};
bool is_roll(const Step& step);
Rolled rolled_by(const Step& roll);

}  // namespace encore::fuse
