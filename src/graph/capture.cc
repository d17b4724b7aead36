#include "graph/capture.h"

#include <utility>

#include "memory/streams.h"

namespace encore::graph {

namespace {
thread_local bool captures_here = false;
}

Capture::Capture(device::StreamRef stream, std::shared_ptr<memory::GraphPool> pool,
                 std::shared_ptr<memory::Retention> retention)
    : stream_(stream) {
  memory::capture_begins(stream);
  try {
    scope_ = std::make_unique<memory::PoolScope>(std::move(pool), std::move(retention));
    device::begin_capture(stream, device::CaptureMode::thread_local_);
  } catch (...) {
    memory::capture_ends(stream);
    throw;
  }
  captures_here = true;
}

Capture::~Capture() {
  if (!scope_) return;
  device::abandon_capture(stream_);
  leave();
}

bool Capture::is_valid() const { return stream_.capture_status() == device::CaptureStatus::active; }

device::Graph Capture::end() {
  if (timeline_) timeline_->finish();
  try {
    device::Graph graph = device::end_capture(stream_);
    leave();
    return graph;
  } catch (...) {
    device::abandon_capture(stream_);
    leave();
    throw;
  }
}

void Capture::leave() noexcept {
  scope_.reset();
  if (thread_ == std::this_thread::get_id()) captures_here = false;
  memory::capture_ends(stream_);
  pass_.reset();
}

bool Capture::may_be_here() { return captures_here; }
void Capture::none_is_here() { captures_here = false; }

}  // namespace encore::graph
