// The inside of a GraphPool, which arenas share.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device/stream.h"
#include "memory/account.h"
#include "memory/block_index.h"
#include "memory/graph_pool.h"
#include "memory/source.h"

namespace encore::memory {

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
  void note_given_back() {
    if (complete) given_back = true;
  }

  const std::shared_ptr<Source> source;
  const std::function<void(size_t)> grew;

  std::atomic<bool> complete{false}, given_back{false};

  std::mutex mutex;                  // guards the rest
  std::shared_ptr<Account> account;  // which pays; known from the first allocation on
  std::vector<void*> chunks;
  size_t held_bytes = 0;
  std::pair<char*, size_t> first_chunk{};  // until the first lane takes it
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<std::shared_ptr<void>> kept;
};

}  // namespace encore::memory
