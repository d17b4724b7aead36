// What a session holds in all, against its limit.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>

namespace encore::memory {

struct Account {
  explicit Account(size_t limit_bytes) : limit_bytes(limit_bytes) {}
  const size_t limit_bytes;
  std::atomic<size_t> held_bytes{0};
  std::atomic<size_t> graph_bytes{0};  // of these, in graphs' pools
  bool charge(size_t bytes) {
    size_t held = held_bytes;
    do {
      if (bytes > limit_bytes - std::min(held, limit_bytes)) return false;
    } while (!held_bytes.compare_exchange_weak(held, held + bytes));
    return true;
  }
};

}  // namespace encore::memory
