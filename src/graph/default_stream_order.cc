#include "graph/default_stream_order.h"

#include "device/default_stream.h"

namespace encore::graph {

void DefaultStreamOrder::before_run(device::StreamRef stream) {
  if (settings_.run_waits) order(stream, device::default_stream(device_));
}

void DefaultStreamOrder::after_run(device::StreamRef stream, bool it_waits) {
  if (settings_.it_waits || it_waits) order(device::default_stream(device_), stream);
}

void DefaultStreamOrder::order(device::StreamRef later, device::StreamRef earlier) {
  const std::lock_guard lock(mutex_);
  if (!event_.ref().native()) event_ = device::Event(device_);
  device::order_default_stream(later, earlier, event_);
}

}  // namespace encore::graph
