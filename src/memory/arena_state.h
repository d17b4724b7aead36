// The inside of an Arena.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory/account.h"
#include "memory/arena.h"
#include "memory/block_index.h"
#include "memory/graph_pool_state.h"
#include "memory/retention.h"
#include "memory/streams.h"

namespace encore::memory {

// A lane is the memory of one stream, which is reused in that stream's order. The common lane's free memory is idle,
// and serves allocations without a stream. What is freed without a stream waits, with the tails of all streams, until
// it is idle and goes to the common lane. When there is no more to be had, lanes lend and give memory to one another.
struct Arena::State : StreamListener, Retainable {
  struct Lane {
    device::StreamRef stream;  // none: the common lane, or one whose stream is gone; nothing uses its free memory then
    uint32_t tenant = 0;       // counts the streams that had it
    size_t held_bytes = 0;
    BlockIndex blocks;
  };
  static constexpr uint32_t kGuest = UINT32_MAX;  // the tenant of what another lane has borrowed
  // Who asks.
  struct For {
    const char* label;
    uint64_t meter;
  };
  struct Use {  // of a block
    Lane* lane;
    Block* block;  // null: a piece of its own
    uint32_t tenant;
    size_t bytes;
    For whom;
  };
  struct PoolUse {
    std::shared_ptr<GraphPool::State> pool;
    GraphPool::State::Lane* lane;
    Block* block;
    For whom;
  };
  struct Freed {
    std::vector<Tail> tails;
    void* address;
    Use use;
  };
  using Lock = std::unique_lock<std::mutex>;

  // Memory on its way back to the source. To be settled, or destroyed, when no lock is held any more.
  struct Leaving {
    explicit Leaving(State& state) : state(state) {}
    ~Leaving() { settle(); }
    void settle() noexcept;

    State& state;
    std::vector<Tail> tails;  // to be waited for first
    std::vector<std::pair<void*, size_t>> pieces;
  };

  State(int device, const Settings& settings, std::string owner);

  const int device;
  const Settings settings;
  const std::string owner;
  const std::shared_ptr<Account> account;
  PoolSource* ordered = nullptr;  // the source, if streams allocate from it themselves
  std::shared_ptr<Source> source;

  mutable std::mutex mutex;  // guards the rest
  Lane common;
  std::vector<std::unique_ptr<Lane>> lanes;
  Lane* last_lane = nullptr;
  std::unordered_map<void*, Use> uses;
  std::unordered_map<void*, PoolUse> pool_uses;
  std::deque<Freed> freed;
  struct ByGraphs {
    int graphs = 0;
    bool given_up = false;  // by its owner
    ToldOf told;
  };
  std::unordered_map<const void*, ByGraphs> retained;
  size_t given_up = 0;  // of these
  std::vector<std::weak_ptr<Hoard>> hoards;
  std::atomic<bool> orphaned = false;  // the arena is gone
  bool shrunk = false;
  Stats stats;

  void* allocate(size_t bytes, device::StreamRef stream, For whom);
  void* allocate_from(const GraphPool& pool, size_t bytes, device::StreamRef stream, For whom);
  void* reserve(size_t bytes, For whom);
  void free(void* address, bool for_its_stream, device::StreamRef but = {});
  void shrink();
  void drain();
  void stream_is_gone(device::StreamRef stream) override;
  std::optional<Retained> retain(const void* address, const GivenBack& told) override;
  void let_go(const void* block) noexcept override;
  std::vector<Holder> holders() const;

  // With the mutex held:
  Lane& lane_of(device::StreamRef stream);
  void* hand_out(Lane& lane, Block* block, size_t bytes, For whom, bool guest = false);
  void* take(Lane& lane, size_t bytes, For whom);  // null if no block is large enough
  size_t growth_bytes(const Lane& lane, size_t bytes) const;
  void recycle(const Freed& idle, Leaving& leaving);
  bool harvest(Leaving& leaving);
  void collect_empty(Leaving& leaving, bool busy_too);
  void count(size_t bytes);
  bool give_up(void* address);

  // With the mutex held, and given back meanwhile:
  void* grow(Lock& lock, Lane& lane, size_t bytes, For whom);
  void* add_chunk(Lock& lock, Lane& lane, size_t chunk_bytes, size_t bytes, For whom, std::string& why);
  void* borrow(Lock& lock, Lane& lane, size_t bytes, For whom, bool busy_too);
  void* borrow_from(Lane& other, Lock& lock, Lane& lane, size_t bytes, For whom, bool busy_too);
  void harvest_all(Lock& lock, Leaving& leaving);
  void* allocate_piece(Lock& lock, Lane& lane, size_t bytes, For whom);
  [[noreturn]] void exhausted(Lock& lock, size_t bytes, const std::string& why) const;

  // Without:
  bool empty_hoards();
  void* take_piece(device::StreamRef stream, size_t bytes,
                   std::string& why);  // null, with the reason, if there is no more
};

}  // namespace encore::memory
