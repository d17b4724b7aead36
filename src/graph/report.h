// What has become of an annotation id in a thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace encore::graph {

// Stale: ready, but memory that it was captured with has been freed by its owner; the next run captures again.
enum class State { warming_up, capturing, ready, stale, releasing, refused };
const char* name(State state);

struct Report {
  int id = 0;
  State state = State::warming_up;
  // Held: the graph's own. Retained: what else it reads and writes, in use or not.
  size_t nodes = 0, held_bytes = 0, retained_bytes = 0;
  int64_t replays = 0;
  std::string refusal;  // why, if refused; a refused id warms up again at its next run
};

}  // namespace encore::graph
