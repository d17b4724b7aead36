#include "device/fault.h"

namespace encore::device {
namespace {

struct TakeFault {
  FaultCell *from, *to;
  DEVICE_FN void operator()(int64_t) const {
    *to = *from;
    *from = {};
  }
};

}  // namespace

void take_fault(StreamRef stream, FaultCell* from, FaultCell* to) { for_each_index(stream, 1, TakeFault{from, to}); }

}  // namespace encore::device
