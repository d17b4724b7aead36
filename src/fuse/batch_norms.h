// Batch normalisation by constants.
#pragma once
#include <vector>

#include "fuse/match.h"

namespace encore::fuse {

bool is_norm_of_constants(const Match& match, int s);

// What the norm multiplies each channel by, and what it adds then; empty if it is not known.
struct NormRows {
  std::vector<double> factors, summands;
  std::vector<double> sizes, means;  // how large it makes them by and large, and what of that their means were
};
NormRows rows_of_norm(const Match& match, const Step& step, int64_t channels);

}  // namespace encore::fuse
