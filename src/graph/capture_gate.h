// Captures wait here while an application does what would break them, such as waiting for a whole device.
#pragma once
#include <chrono>

namespace encore::graph::capture_gate {

// Held by each capture. Waits while captures are held back; throws if the same thread holds them back, or nobody lets
// go of them for too long.
class Pass {
 public:
  Pass();
  ~Pass();
  Pass(const Pass&) = delete;
};

// From when this returns, no session of the process captures, until each hold() has met its let_go(). Throws, and holds
// nothing, if a capture under way does not end in time.
void hold(std::chrono::milliseconds longest = std::chrono::seconds(10));
void let_go();

}  // namespace encore::graph::capture_gate
