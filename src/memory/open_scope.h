// A scope of a thread which another thread may end, when a session ends whose run never did.
#pragma once
#include <mutex>
#include <unordered_map>
#include <utility>

#include "memory/here.h"

namespace encore::memory {

// While in scope, the calling thread has a State. The States lie in a table, and the thread has the number of its
// innermost at kPlace of `here`, so a scope that another thread has ended is found no more.
template <class State, uint64_t Here::*kPlace>
class OpenScope {
 public:
  explicit OpenScope(State state) : serial_(add(std::move(state))), previous_(std::exchange(here.*kPlace, serial_)) {}
  ~OpenScope() {
    if (here.*kPlace == serial_) here.*kPlace = previous_;
    typename States::node_type gone;  // after the lock, because its end may have to wait
    const std::lock_guard lock(open().mutex);
    gone = open().states.extract(serial_);
  }
  OpenScope(const OpenScope&) = delete;

  State state() const {
    const std::lock_guard lock(open().mutex);
    return open().states.at(serial_);
  }
  // use(state), under the lock, of the calling thread's innermost; nothing if there is none.
  template <class Use>
  static void with_current(const Use& use) {
    if (!(here.*kPlace)) return;
    const std::lock_guard lock(open().mutex);
    const auto found = open().states.find(here.*kPlace);
    if (found != open().states.end()) use(found->second);
  }

 private:
  using States = std::unordered_map<uint64_t, State>;
  struct Open {
    std::mutex mutex;
    States states;
    uint64_t last = 0;
  };
  static Open& open() {
    static auto& open = *new Open;
    return open;
  }
  static uint64_t add(State state) {
    const std::lock_guard lock(open().mutex);
    open().states.emplace(++open().last, std::move(state));
    return open().last;
  }

  const uint64_t serial_, previous_;
};

}  // namespace encore::memory
