// Where a reduction's results go. A reduction is a functor F with
//   In, Out, Acc                        types; an Acc takes at most 16 bytes
//   Acc zero()                          of no values
//   void take(Acc&, In, int64_t index)  one more value; `index` counts along the innermost reduced dimension, and
//                                       ascends
//   Acc merge(Acc, Acc)                 associative
//   Out finish(Acc)
//   kBatch                              packs a thread asks for before it waits for the first; 1 where `take` is long
//   kRuns                               which rows of neighbours it has, if reduce_rows() has the others
#pragma once
#include <algorithm>

#include "device/device.h"
#include "device/transform.h"
#include "ops/reduce/plan.h"

namespace encore::ops {

using device::Block;
using device::NoShared;
using device::Pack;
using device::PerThread;

// Rows of neighbours. Kernels leave out what they never meet.
enum class Runs {
  all,
  ragged,  // short ones that are not made of whole packs
  huge     // those of kIntCap values or more
};
template <class F>
constexpr Runs runs_of() {
  if constexpr (requires { F::kRuns; })
    return F::kRuns;
  else
    return Runs::all;
}

// Finished to `y`, or, where outputs are too few to fill the GPU and each is split, into parts[split * outputs +
// output], which a second launch merges (merge_parts.h).
template <class F>
struct Results {
  typename F::Out* y;
  typename F::Acc* parts;  // null if there is one split
  int64_t outputs, splits;

  DEVICE_FN void put(const F& f, int64_t output, int64_t split, const typename F::Acc& acc) const {
    if (parts)
      parts[split * outputs + output] = acc;
    else
      y[output] = f.finish(acc);
  }

  // Into how many parts of `least` or more `units` are cut, so that `blocks` become `enough`; tells how many units each
  // has, a multiple of `step` where there are several. They never are 2^31.
  int64_t cut(Context& context, int64_t blocks, int64_t enough, int64_t units, int64_t least, int64_t step) {
    const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    int64_t wanted = std::min(enough / std::max<int64_t>(blocks, 1), units / least);
    wanted = std::max({wanted, units >> 30, int64_t(1)});
    int64_t chunk = std::max<int64_t>(ceil(units, wanted), 1);
    if (wanted > 1) chunk = ceil(chunk, step) * step;
    splits = std::max<int64_t>(ceil(units, chunk), 1);
    if (splits > 1)
      parts = static_cast<typename F::Acc*>(
          context.scratch(size_t(checked_product(outputs, splits)) * sizeof(typename F::Acc)));
    return chunk;
  }
};

}  // namespace encore::ops
