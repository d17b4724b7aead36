// How long the host takes.
#pragma once
#include <chrono>

namespace encore::device {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace encore::device
