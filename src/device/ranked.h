// Something's rank, and its place. Of several the one of the highest rank is wanted, of equal ones that of the greatest
// place: where warps have an instruction for the greatest of their integers, collectives do this by it.
#pragma once
#include <cstdint>

#include "device/annotate.h"

namespace encore::device {

template <class Rank>
struct Ranked {
  Rank rank;
  int32_t place;
};

struct HigherRank {
  template <class Rank>
  DEVICE_FN Ranked<Rank> operator()(const Ranked<Rank>& a, const Ranked<Rank>& b) const {
    const bool higher = (b.rank > a.rank) | ((b.rank == a.rank) & (b.place > a.place));
    return {higher ? b.rank : a.rank, higher ? b.place : a.place};
  }
};

}  // namespace encore::device
