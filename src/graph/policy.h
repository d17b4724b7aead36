// Which runs of a session are captured.
#pragma once
#include <atomic>
#include <mutex>
#include <set>

#include "graph/settings.h"

namespace encore::graph {

// What a refusal holds for: the id, whose runs do what others don't, or the model, of whose nodes one can't be
// captured.
enum class Holds { for_id, for_model };

class Policy {
 public:
  Policy(int device, Settings settings);
  const int device;
  const Settings settings;

  bool is_profiled() const { return settings.recorder && settings.recorder->is_on(); }
  bool captures() const { return captures_.load(std::memory_order_relaxed); }
  bool captures(int id) const;
  bool stop(int id, Holds holds);  // true if it did capture until now
  void resume(int id);             // if the model can be captured

 private:
  std::atomic<bool> captures_;
  mutable std::mutex mutex_;
  std::set<int> eager_;
};

}  // namespace encore::graph
