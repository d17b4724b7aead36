#include "memory/arena.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "device/error.h"
#include "memory/graph_pool.h"

namespace encore::memory {

using device::StreamRef;

// A lane is the memory of one stream, which is reused in that stream's order. The common lane's free memory is idle,
// and serves allocations without a stream. What is freed without a stream waits, with the tails of all streams, until
// it is idle and goes to the common lane.
struct Arena::State {
  struct Lane {
    StreamRef stream;     // none: the common lane, or one whose stream is gone; nothing uses its free memory then
    uint32_t tenant = 0;  // counts the streams that had it
    size_t held_bytes = 0;
    BlockIndex blocks;
  };
  struct Use {   // of a block
    Lane* lane;  // null: reserved, a chunk of its own
    Block* block;
    uint32_t tenant;
    uint64_t meter;
    size_t bytes;
  };
  struct PoolUse {
    std::shared_ptr<GraphPool::State> pool;
    GraphPool::State::Lane* lane;
    Block* block;
    uint64_t meter;
  };
  struct Freed {
    std::vector<Tail> tails;
    void* address;
    Use use;
  };
  using Lock = std::unique_lock<std::mutex>;

  State(int device, Limits limits, std::string owner)
      : device(device), limits(limits), owner(std::move(owner)), account(std::make_shared<Account>(limits.max_bytes)) {}

  const int device;
  const Limits limits;
  const std::string owner;
  const std::shared_ptr<Account> account;

  mutable std::mutex mutex;  // guards the rest
  Lane common;
  std::vector<std::unique_ptr<Lane>> lanes;
  Lane* last_lane = nullptr;
  std::unordered_map<void*, Use> uses;
  std::unordered_map<void*, PoolUse> pool_uses;
  std::deque<Freed> freed;
  Stats stats;

  void* allocate(size_t bytes, StreamRef stream, Meter* meter);
  void* allocate_from(const GraphPool& pool, size_t bytes, StreamRef stream, Meter* meter);
  void* reserve(size_t bytes);
  void free(void* address);

  // All with the mutex held:
  Lane& lane_of(StreamRef stream);
  Block* grow(Lane& lane, size_t bytes);
  void* chunk_of(size_t bytes);  // null if the limit or the device has no more
  void recycle(void* address, const Use& use);
  bool harvest(bool wait);
  bool release_empty(bool wait);  // of lanes that are idle, or will be

  bool make_room();  // whatever it takes
  [[noreturn]] void exhausted(size_t bytes) const;
  void count(size_t bytes);
};

namespace {

// For delist(), which concerns all.
struct Arenas {
  std::mutex mutex;
  std::vector<std::weak_ptr<void>> states;
};
Arenas& arenas() {
  static auto& arenas = *new Arenas;
  return arenas;
}

std::string mebibytes(size_t bytes) { return text(bytes, " bytes (", bytes >> 20, " MiB)"); }

}  // namespace

void Arena::State::count(size_t bytes) {
  ++stats.allocations;
  stats.in_use_bytes += bytes;
  stats.peak_in_use_bytes = std::max(stats.peak_in_use_bytes, stats.in_use_bytes);
}

Arena::State::Lane& Arena::State::lane_of(StreamRef stream) {
  if (!stream) return common;
  if (last_lane && last_lane->stream == stream) return *last_lane;
  auto found = std::ranges::find(lanes, stream, [](const auto& lane) { return lane->stream; });
  if (found == lanes.end()) {
    if (!detail::is_enlisted(stream)) fail(Code::internal, "memory was asked for by a stream that is not enlisted");
    found = std::ranges::find(lanes, StreamRef(), [](const auto& lane) { return lane->stream; });
    if (found == lanes.end()) {
      lanes.push_back(std::make_unique<Lane>());
      found = lanes.end() - 1;
    }
    (*found)->stream = stream;
  }
  return *(last_lane = found->get());
}

void* Arena::State::allocate(size_t bytes, StreamRef stream, Meter* meter) {
  std::lock_guard lock(mutex);
  Lane& lane = lane_of(stream);
  Block* block = lane.blocks.take(bytes);
  if (!block) block = grow(lane, bytes);
  uses.insert_or_assign(block->address, Use{&lane, block, lane.tenant, meter ? meter->serial_ : 0, bytes});
  count(bytes);
  return block->address;
}

Block* Arena::State::grow(Lane& lane, size_t bytes) {
  if (harvest(false))
    if (Block* block = lane.blocks.take(bytes)) return block;
  const auto add_chunk = [&](size_t chunk_bytes) -> Block* {
    void* chunk = chunk_of(chunk_bytes);
    if (!chunk) return nullptr;
    if (lane.stream && lane.stream.capture_status() != device::CaptureStatus::none)
      ++stats.driver_allocations_in_capture;
    lane.blocks.add(static_cast<char*>(chunk), chunk_bytes);
    lane.held_bytes += chunk_bytes;
    return lane.blocks.take(bytes);
  };
  if (limits.grow_by_doubling) {
    const size_t twice = std::min(std::max(lane.held_bytes, limits.first_chunk_bytes), limits.largest_growth_bytes);
    if (Block* block = add_chunk(std::max(bytes, whole_units(twice)))) return block;
  }
  if (Block* block = add_chunk(bytes)) return block;
  if (harvest(true))
    if (Block* block = lane.blocks.take(bytes)) return block;
  release_empty(true);
  if (Block* block = add_chunk(bytes)) return block;
  exhausted(bytes);
}

void* Arena::State::chunk_of(size_t bytes) {
  if (!account->charge(bytes)) return nullptr;
  try {
    void* chunk = take_chunk(device, bytes);
    ++stats.driver_allocations;
    return chunk;
  } catch (const Error& e) {
    account->held_bytes -= bytes;
    if (e.code() != Code::out_of_memory) throw;
    return nullptr;
  }
}

void Arena::State::exhausted(size_t bytes) const {
  const device::MemoryInfo info = device::memory_info(device);
  const size_t limit = limits.max_bytes, held = account->held_bytes;
  fail(Code::out_of_memory, owner, ": device memory is exhausted: ", mebibytes(bytes), " wanted, ", mebibytes(held),
       " held, of which ", mebibytes(stats.in_use_bytes), " in use; the limit is ",
       limit == SIZE_MAX ? "none" : mebibytes(limit), "; device ", device, " has ", mebibytes(info.free_bytes), " of ",
       mebibytes(info.total_bytes), " free",
       limit != SIZE_MAX && bytes > limit - std::min(held, limit)
           ? "; raise the limit or use smaller batches"
           : "; use smaller batches or free memory of the device");
}

void* Arena::State::allocate_from(const GraphPool& graph_pool, size_t bytes, StreamRef stream, Meter* meter) {
  const std::shared_ptr<GraphPool::State> pool = graph_pool.state_;
  GraphPool::State::Taken taken;
  {
    std::lock_guard lock(mutex);
    const auto take = [&](bool last) {
      try {
        taken = pool->take(bytes, stream, account);
        return true;
      } catch (const Error& e) {
        if (e.code() != Code::out_of_memory) throw;
        if (last) exhausted(bytes);
        return false;
      }
    };
    if (!take(false)) {
      make_room();
      take(true);
    }
    pool_uses.insert_or_assign(taken.block->address,
                               PoolUse{pool, taken.lane, taken.block, meter ? meter->serial_ : 0});
    count(bytes);
    if (taken.grown_bytes) {
      ++stats.driver_allocations;
      ++stats.driver_allocations_in_capture;
    }
  }
  if (taken.grown_bytes && pool->grew) pool->grew(taken.grown_bytes);
  return taken.block->address;
}

void* Arena::State::reserve(size_t bytes) {
  std::lock_guard lock(mutex);
  harvest(false);
  void* chunk = chunk_of(bytes);
  if (!chunk && make_room()) chunk = chunk_of(bytes);
  if (!chunk) exhausted(bytes);
  uses.insert_or_assign(chunk, Use{nullptr, nullptr, 0, 0, bytes});
  count(bytes);
  return chunk;
}

void Arena::State::free(void* address) {
  const auto meter_free = [](uint64_t serial, size_t bytes) {
    if (here.meter && here.meter->serial_ == serial) here.meter->bytes_ -= bytes;
  };
  std::shared_ptr<GraphPool::State> last_holder;  // let go after the lock, because it may have to wait
  std::lock_guard lock(mutex);
  if (const auto found = uses.find(address); found != uses.end()) {
    const Use use = found->second;
    uses.erase(found);
    stats.in_use_bytes -= use.bytes;
    meter_free(use.meter, use.bytes);
    if (use.lane && use.lane->stream && use.lane->tenant == use.tenant) return use.lane->blocks.put(use.block);
    std::vector<Tail> waited_for = tails(device);
    if (waited_for.empty()) return recycle(address, use);
    freed.push_back({std::move(waited_for), address, use});
  } else if (const auto in_pool = pool_uses.find(address); in_pool != pool_uses.end()) {
    PoolUse use = std::move(in_pool->second);
    pool_uses.erase(in_pool);
    stats.in_use_bytes -= use.block->bytes;
    meter_free(use.meter, use.block->bytes);
    use.pool->put(use.lane, use.block);
    last_holder = std::move(use.pool);
  } else {
    std::fprintf(stderr, "encore: %s: %p was freed, but is not in use\n", owner.c_str(), address);
  }
}

// Of memory that is idle.
void Arena::State::recycle(void* address, const Use& use) {
  if (use.lane) return use.lane->blocks.put(use.block);
  release_chunk(device, address);
  account->held_bytes -= use.bytes;
}

bool Arena::State::harvest(bool wait) {
  bool any = false;
  while (!freed.empty() && (wait ? wait_for(freed.front().tails) : is_done(freed.front().tails))) {
    const Freed first = std::move(freed.front());
    freed.pop_front();
    recycle(first.address, first.use);
    any = true;
  }
  return any;
}

bool Arena::State::release_empty(bool wait) {
  size_t released = 0;
  const auto release = [&](Lane& lane) {
    if (!lane.blocks.has_empty_chunk()) return;
    if (lane.stream && !(wait ? wait_for({tail(lane.stream)}) : is_idle(lane.stream))) return;
    const size_t bytes = lane.blocks.remove_empty([this](char* chunk, size_t) { release_chunk(device, chunk); });
    lane.held_bytes -= bytes;
    released += bytes;
  };
  release(common);
  for (auto& lane : lanes) release(*lane);
  account->held_bytes -= released;
  return released > 0;
}

bool Arena::State::make_room() {
  const bool harvested = harvest(true);
  return release_empty(true) || harvested;
}

Arena::Arena(int device, Limits limits, std::string owner)
    : state_(std::make_shared<State>(device, limits, std::move(owner))) {
  std::lock_guard lock(arenas().mutex);
  std::erase_if(arenas().states, [](const auto& state) { return state.expired(); });
  arenas().states.push_back(state_);
}

Arena::~Arena() {
  try {
    std::lock_guard lock(state_->mutex);
    state_->make_room();
    const size_t left = state_->uses.size() + state_->pool_uses.size();
    if (left == 0 && state_->freed.empty()) return;
    std::fprintf(stderr,
                 "encore: %s: %zu blocks (%zu bytes) were still in use at the end; their memory stays allocated\n",
                 state_->owner.c_str(), left, state_->stats.in_use_bytes);
    if (!state_->pool_uses.empty()) new std::shared_ptr<State>(state_);  // holds the pools
  } catch (const std::exception& e) {
    std::fprintf(stderr, "encore: memory could not be given back: %s\n", e.what());
  }
}

void* Arena::allocate(size_t bytes, StreamRef stream) {
  if (bytes == 0) return nullptr;
  const size_t whole = whole_units(bytes);
  Meter* meter = here.meter;
  const auto& pool = PoolScope::current();
  void* address = pool && pool->state_->device == state_->device ? state_->allocate_from(*pool, whole, stream, meter)
                                                                 : state_->allocate(whole, stream, meter);
  if (meter) meter->peak_bytes_ = std::max(meter->peak_bytes_, meter->bytes_ += whole);
  return address;
}

void* Arena::reserve(size_t bytes) { return bytes == 0 ? nullptr : state_->reserve(whole_units(bytes)); }

void Arena::free(void* address) noexcept {
  if (!address) return;
  try {
    state_->free(address);
  } catch (const std::exception& e) {  // the block stays out of use
    std::fprintf(stderr, "encore: %s: memory could not be freed: %s\n", state_->owner.c_str(), e.what());
  }
}

void Arena::shrink() {
  std::lock_guard lock(state_->mutex);
  state_->harvest(false);
  state_->release_empty(false);
}

Stats Arena::stats() const {
  std::lock_guard lock(state_->mutex);
  Stats stats = state_->stats;
  stats.held_bytes = state_->account->held_bytes;
  stats.limit_bytes = state_->limits.max_bytes;
  return stats;
}

// The stream's free memory is idle once it has been waited for. What is in use is freed with everybody's tails later,
// because its tenant has changed.
void delist(StreamRef stream) noexcept {
  try {
    wait_for({tail(stream)});
    if (!detail::drop(stream)) return;
    std::lock_guard lock(arenas().mutex);
    for (auto& each : arenas().states) {
      const auto state = std::static_pointer_cast<Arena::State>(each.lock());
      if (!state) continue;
      std::lock_guard state_lock(state->mutex);
      state->last_lane = nullptr;
      for (auto& lane : state->lanes) {
        if (lane->stream != stream) continue;
        lane->stream = {};
        ++lane->tenant;
      }
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "encore: a stream could not be delisted: %s\n", e.what());
  }
}

}  // namespace encore::memory
