#include "plugin/kernels/profiled_node.h"

namespace encore::plugin {

void ProfiledNode::time(const NamedNode& node, device::StreamRef stream) {
  if (node.ep.capturing()) {
    timeline_ = node.ep.graphs()->timeline();
  } else if (stream.capture_status() == device::CaptureStatus::none) {  // not the application's
    recorder_ = &node.ep.recorder();
    timeline_ = recorder_->timeline(stream, profile::Timeline::Of::run);
  }
  scope_.emplace(timeline_.get());
  if (timeline_) timeline_->begin({node.name, node.op});
}

void ProfiledNode::end() noexcept {
  scope_.reset();
  if (!timeline_) return;
  timeline_->end();
  if (!recorder_) return;
  timeline_->finish();
  recorder_->add(std::move(timeline_));
}

}  // namespace encore::plugin
