#include "ops/control/iterations.h"

#include "device/launch.h"

namespace encore::ops {
namespace {

struct Begin {
  IterationCells cells;
  IterationLimits limits;
  DEVICE_FN void operator()(int64_t) const {
    *cells.number = 0;
    *cells.goes_on = (limits.condition ? *limits.condition : limits.condition_on_host) &&
                     (limits.count ? *limits.count : limits.count_on_host) > 0;
  }
};

struct End {
  IterationCells cells;
  IterationLimits limits;
  DEVICE_FN void operator()(int64_t) const {
    const int64_t number = *cells.number + 1;
    *cells.number = number;
    *cells.goes_on = *cells.next && number < (limits.count ? *limits.count : limits.count_on_host);
  }
};

}  // namespace

void begin_iterations(device::StreamRef stream, const IterationCells& cells, const IterationLimits& limits) {
  device::for_each_index(stream, 1, Begin{cells, limits});
}

void end_iteration(device::StreamRef stream, const IterationCells& cells, const IterationLimits& limits) {
  device::for_each_index(stream, 1, End{cells, limits});
}

}  // namespace encore::ops
