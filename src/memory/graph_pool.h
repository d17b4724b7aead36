// The inside of a GraphPool, which arenas share.
#pragma once
#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "memory/arena.h"
#include "memory/block_index.h"

namespace encore::memory {

// What a session holds in all, against its limit.
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

// Whole units of kAlignment. SIZE_MAX, which nobody has, if there are none.
inline size_t whole_units(size_t bytes) {
  return bytes > SIZE_MAX - kAlignment ? SIZE_MAX : (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

struct GraphPool::State {
  State(std::shared_ptr<Source> source, size_t first_chunk_bytes, std::function<void(size_t)> grew);
  ~State();

  struct Lane {
    void* stream;  // null: of no stream, never reused, because nothing tells when it could be
    BlockIndex blocks;
  };
  struct Taken {
    Lane* lane;
    Block* block;
    size_t grown_bytes;
  };
  // Error{out_of_memory} if the account or the source has no more. A first chunk that the account can't pay is kept for
  // a second attempt, unless this is the `last`.
  Taken take(size_t bytes, device::StreamRef stream, const std::shared_ptr<Account>& account, bool last);
  void put(Lane* lane, Block* block);

  const std::shared_ptr<Source> source;
  const std::function<void(size_t)> grew;

  std::mutex mutex;                  // guards the rest
  std::shared_ptr<Account> account;  // which pays; known from the first allocation on
  std::vector<void*> chunks;
  size_t held_bytes = 0;
  std::pair<char*, size_t> first_chunk{};  // until the first lane takes it
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<std::shared_ptr<void>> kept;
};

// What the calling thread is in.
struct Here {
  PoolScope* scope = nullptr;
  Meter* meter = nullptr;
};
inline constinit thread_local Here here;

}  // namespace encore::memory
