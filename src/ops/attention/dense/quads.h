#pragma once
#include "device/pack.h"
#include "device/warp.h"

namespace encore::ops {

// Of lanes that have the same rows of a FragmentC: each of the kMany values that values_of(lane) points to becomes op
// over them.
template <int kMany, class F, class Op>
DEVICE_FN void over_quads(const device::Warp& warp, F values_of, Op op) {
  UNROLL for (int mask = 1; mask < 4; mask *= 2) {
    device::PerThread<device::Pack<float, kMany>, 32> others;
    warp.lanes([&](int lane) { UNROLL for (int i = 0; i < kMany; ++i) others[lane].at[i] = values_of(lane)[i]; });
    warp.template exchange<kMany>(mask, [&](int lane) { return others[lane].at; });
    warp.apart([&](int lane) {
      UNROLL for (int i = 0; i < kMany; ++i) values_of(lane)[i] = op(values_of(lane)[i], others[lane].at[i]);
    });
  }
}

}  // namespace encore::ops
