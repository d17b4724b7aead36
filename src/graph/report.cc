#include "graph/report.h"

namespace encore::graph {

const char* name(State state) {
  switch (state) {
    case State::warming_up: return "warming up";
    case State::capturing: return "capturing";
    case State::ready: return "ready";
    case State::stale: return "stale";
    case State::releasing: return "releasing";
    case State::refused: return "refused";
  }
  return "unknown";
}

}  // namespace encore::graph
