// How small and how large numbers can be, as far as the steps tell that make them.
#pragma once
#include <optional>

#include "fuse/match.h"

namespace encore::fuse {

struct Bounds {
  double least, most;
};
// Of a step's input, all of whose numbers are finite; nothing where nobody knows that.
std::optional<Bounds> bounds_of(const Match& match, const Step& step, size_t input);
// Of sums; nothing where one of a type may be infinite.
std::optional<Bounds> sum(ops::Type type, const Bounds& a, const Bounds& b);
// Whether a constant that is added to scores leaves a key in each row, as far as it is looked at.
bool each_row_sees(const Tensor& mask);

}  // namespace encore::fuse
