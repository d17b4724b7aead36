// What an operator made of the latest shapes, say, for the threads that run it.
#pragma once
#include <mutex>
#include <optional>
#include <utility>

namespace encore::ops {

template <class Key, class Made>
class Latest {
 public:
  std::optional<Made> find(const Key& key) const {
    const std::lock_guard lock(mutex_);
    return latest_ && latest_->first == key ? std::optional(latest_->second) : std::nullopt;
  }
  void keep(const Key& key, const Made& made) {
    const std::lock_guard lock(mutex_);
    latest_.emplace(key, made);
  }

 private:
  mutable std::mutex mutex_;
  std::optional<std::pair<Key, Made>> latest_;
};

}  // namespace encore::ops
