#include "graph/policy.h"

#include <utility>

namespace encore::graph {

Policy::Policy(int device, Settings settings)
    : device(device), settings(std::move(settings)), captures_(this->settings.enabled) {}

bool Policy::captures(int id) const {
  if (id == kEagerId || !captures()) return false;
  const std::lock_guard lock(mutex_);
  return !eager_.contains(id);
}

bool Policy::stop(int id, Holds holds) {
  if (holds == Holds::for_model) return captures_.exchange(false);
  const std::lock_guard lock(mutex_);
  return eager_.insert(id).second && captures();
}

void Policy::resume(int id) {
  const std::lock_guard lock(mutex_);
  eager_.erase(id);
}

}  // namespace encore::graph
