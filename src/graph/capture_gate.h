// Captures wait here while an application does what would break them, such as waiting for a whole device.
#pragma once
#include <chrono>
#include <mutex>

namespace encore::graph::capture_gate {

// Held by each capture.
class Pass {
 public:
  Pass();  // waits while captures are held back; throws if this thread holds them, or nobody lets go for too long
  explicit Pass(std::try_to_lock_t);  // none if they are held back
  ~Pass();
  explicit operator bool() const { return is_through_; }
  Pass(const Pass&) = delete;

 private:
  bool is_through_ = true;
};

// From when this returns, no session of the process captures, until each hold() has met its let_go(). Throws, and holds
// nothing, if a capture under way does not end in time.
void hold(std::chrono::milliseconds longest = std::chrono::seconds(10));
void let_go();

}  // namespace encore::graph::capture_gate
