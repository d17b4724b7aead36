#include "plugin/session/completion.h"

#include <algorithm>
#include <memory>

#include "device/device.h"
#include "device/error.h"
#include "device/gone.h"
#include "device/graph.h"
#include "device/memory.h"

namespace encore::plugin {
namespace {

// Whoever asks, in whichever thread, need not have any device: CUDA would start the first one.
template <class Part, class F>
auto on_its_device(const Part& part, F f) {
  const device::Current current(part.stream.device());
  return f();
}

}  // namespace

Completion::~Completion() {
  try {
    const device::RelaxedCapture relaxed;
    for (const Part& part : used()) on_its_device(part, [&] { part.event.synchronize(); });
    for (const Part& part : parts_) on_its_device(part, [&] { device::free_pinned(part.reported); });
  } catch (const std::exception& error) {
    device::complain("a run could not be waited for", error);
  }
}

void Completion::write(std::span<const device::StreamRef> streams, FaultCells& faults) {
  const device::RelaxedCapture relaxed;
  used_ = 0;
  faults_ = &faults;
  for (const device::StreamRef stream : streams) {
    if (used_ == parts_.size()) {
      auto* const reported = static_cast<device::FaultCell*>(device::allocate_pinned(sizeof(device::FaultCell)));
      parts_.push_back({stream, device::Event(stream.device()), new (reported) device::FaultCell});
    }
    Part& part = parts_[used_++];
    if (part.stream.device() != stream.device()) part.event = device::Event(stream.device());
    part.stream = stream;
    part.may_report = faults.take(stream, part.reported);
    part.event.record(stream);
  }
}

bool Completion::done() const {
  const device::RelaxedCapture relaxed;
  return std::ranges::all_of(used(),
                             [](const Part& part) { return on_its_device(part, [&] { return part.event.done(); }); });
}

void Completion::wait() {
  const device::RelaxedCapture relaxed;
  for (const Part& part : used()) on_its_device(part, [&] { part.event.synchronize(); });
  for (Part& part : used())
    if (part.may_report) faults_->raise(*part.reported);
}

void Completion::order(void* stream) const {
  for (const Part& part : used())
    on_its_device(part, [&] { device::StreamRef(stream, part.stream.device()).wait(part.event); });
}

}  // namespace encore::plugin
