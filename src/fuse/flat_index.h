// Indices into axes that are merged, as models compute them of positions: row * length + key.
#pragma once
#include "fuse/volume.h"

namespace encore::fuse {

// A term of a sum, times a factor.
struct IndexTerm {
  int value;           // what is multiplied, of the plan
  int64_t count = -1;  // the value counts from zero to below this dimension; -1: nothing is known of it
  int axis = 0;        // along which it does, counted from behind the last
  Volume factor = {};
};

// What the value is a sum of; a single term where it is no sum.
std::vector<IndexTerm> index_terms(const Match& match, int value, const KnownVolumes& known);

}  // namespace encore::fuse
