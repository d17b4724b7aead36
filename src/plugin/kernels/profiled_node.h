// A node's run in the session's profiles, if there are any: on the timeline of the graph that it is captured in, or on
// one of its own.
#pragma once
#include <memory>
#include <optional>

#include "plugin/kernels/run_as.h"
#include "profile/timeline.h"

namespace encore::plugin {

class ProfiledNode {
 public:
  ProfiledNode() = default;
  ProfiledNode(const NamedNode& node, device::StreamRef stream) { begin(node, stream); }
  ~ProfiledNode() {
    if (scope_) [[unlikely]]
      end();
  }
  ProfiledNode(const ProfiledNode&) = delete;
  void begin(const NamedNode& node, device::StreamRef stream) {
    if (node.ep.recorder().is_on()) [[unlikely]]
      time(node, stream);
  }

 private:
  void time(const NamedNode& node, device::StreamRef stream);
  void end() noexcept;

  std::shared_ptr<profile::Timeline> timeline_;
  profile::Recorder* recorder_ = nullptr;  // that gets the timeline when the node is through
  std::optional<profile::Timeline::Scope> scope_;
};

}  // namespace encore::plugin
