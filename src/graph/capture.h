// A capture under way.
#pragma once
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "device/graph.h"
#include "device/stream.h"
#include "graph/capture_gate.h"
#include "memory/graph_pool.h"
#include "memory/pool_scope.h"
#include "memory/retention.h"
#include "profile/timeline.h"

namespace encore::graph {

class Capture {
 public:
  // Of what the calling thread enqueues on the stream, which is enlisted. What it allocates comes from the pool,
  // and what else it is noted to use is retained.
  Capture(device::StreamRef stream, std::shared_ptr<memory::GraphPool> pool,
          std::shared_ptr<memory::Retention> retention);
  ~Capture();  // drops what was captured, unless it has been ended
  Capture(const Capture&) = delete;

  bool is_valid() const;
  // What is captured from now on is timed in each launch.
  void time(std::shared_ptr<profile::Timeline> timeline) { timeline_ = std::move(timeline); }
  const std::shared_ptr<profile::Timeline>& timeline() const { return timeline_; }
  device::Graph end();  // Error, and the capture is over, if something has invalidated it

  // Whether one is, or may be, under way in the calling thread. Another thread may have dropped it, with the session.
  static bool may_be_here();
  static void none_is_here();

 private:
  void leave() noexcept;

  const device::StreamRef stream_;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::optional<capture_gate::Pass> pass_{std::in_place};
  std::unique_ptr<memory::PoolScope> scope_;  // null once it is over
  std::shared_ptr<profile::Timeline> timeline_;
};

}  // namespace encore::graph
