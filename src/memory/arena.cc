#include "memory/arena.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "device/error.h"
#include "device/label.h"
#include "memory/graph_pool.h"

namespace encore::memory {

using device::StreamRef;

// A lane is the memory of one stream, which is reused in that stream's order. The common lane's free memory is idle,
// and serves allocations without a stream. What is freed without a stream waits, with the tails of all streams, until
// it is idle and goes to the common lane. When there is no more to be had, lanes lend and give memory to one another.
struct Arena::State {
  struct Lane {
    StreamRef stream;     // none: the common lane, or one whose stream is gone; nothing uses its free memory then
    uint32_t tenant = 0;  // counts the streams that had it
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
  bool shrunk = false;
  Stats stats;

  void* allocate(size_t bytes, StreamRef stream, For whom);
  void* allocate_from(const GraphPool& pool, size_t bytes, StreamRef stream, For whom);
  void* reserve(size_t bytes, For whom);
  void free(void* address);
  void shrink();
  void drain();
  std::vector<Holder> holders() const;

  // With the mutex held:
  Lane& lane_of(StreamRef stream);
  void* hand_out(Lane& lane, Block* block, size_t bytes, For whom, bool guest = false);
  void* take(Lane& lane, size_t bytes, For whom);  // null if no block is large enough
  size_t growth_bytes(const Lane& lane, size_t bytes) const;
  void recycle(const Freed& idle, Leaving& leaving);
  bool harvest(Leaving& leaving);
  void collect_empty(Leaving& leaving, bool busy_too);
  void count(size_t bytes);

  // With the mutex held, and given back meanwhile:
  void* grow(Lock& lock, Lane& lane, size_t bytes, For whom);
  void* add_chunk(Lock& lock, Lane& lane, size_t chunk_bytes, size_t bytes, For whom, std::string& why);
  void* borrow(Lock& lock, Lane& lane, size_t bytes, For whom, bool busy_too);
  void* borrow_from(Lane& other, Lock& lock, Lane& lane, size_t bytes, For whom, bool busy_too);
  void harvest_all(Lock& lock, Leaving& leaving);
  void* allocate_piece(Lock& lock, Lane& lane, size_t bytes, For whom);
  [[noreturn]] void exhausted(Lock& lock, size_t bytes, const std::string& why) const;

  // Without:
  void* take_piece(StreamRef stream, size_t bytes, std::string& why);  // null, with the reason, if there is no more
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

const char* label_or(const char* otherwise) {
  const char* const label = device::Label::current();
  return *label ? label : otherwise;
}

uint64_t meter_here() { return here.meter ? here.meter->serial() : 0; }

std::shared_ptr<Source> source_of(int device, const Settings& settings) {
  if (settings.external) return std::make_shared<ExternalSource>(device, settings.external);
  if (settings.reuse != Reuse::stream_order) return std::make_shared<PoolSource>(device);
  return std::make_shared<PoolSource>(device, settings.pool_keeps_bytes, settings.pool_keeps_on_shrink_bytes);
}

}  // namespace

Arena::State::State(int device, const Settings& settings, std::string owner)
    : device(device),
      settings(settings),
      owner(std::move(owner)),
      account(std::make_shared<Account>(settings.max_bytes)),
      source(source_of(device, settings)) {
  if (settings.reuse == Reuse::stream_order) ordered = dynamic_cast<PoolSource*>(source.get());
}

void Arena::State::Leaving::settle() noexcept {
  size_t bytes = 0;
  const bool idle = wait_for(tails);  // if the device cannot tell any more, the memory is lost
  for (const auto& [address, piece_bytes] : pieces) {
    if (idle) state.source->give_back(address);
    bytes += piece_bytes;
  }
  state.account->held_bytes -= bytes;
  pieces.clear();
  tails.clear();
}

void Arena::State::count(size_t bytes) {
  ++stats.allocations;
  stats.in_use_bytes += bytes;
  stats.peak_in_use_bytes = std::max(stats.peak_in_use_bytes, stats.in_use_bytes);
  stats.largest_bytes = std::max(stats.largest_bytes, bytes);
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

void* Arena::State::hand_out(Lane& lane, Block* block, size_t bytes, For whom, bool guest) {
  uses.insert_or_assign(block->address, Use{&lane, block, guest ? kGuest : lane.tenant, bytes, whom});
  count(bytes);
  return block->address;
}

void* Arena::State::take(Lane& lane, size_t bytes, For whom) {
  Block* block = lane.blocks.take(bytes, settings.dead_bytes);
  return block ? hand_out(lane, block, bytes, whom) : nullptr;
}

void* Arena::State::allocate(size_t bytes, StreamRef stream, For whom) {
  Lock lock(mutex);
  Lane& lane = lane_of(stream);
  if (settings.reuse != Reuse::blocks) return allocate_piece(lock, lane, bytes, whom);
  if (void* address = take(lane, bytes, whom)) return address;
  return grow(lock, lane, bytes, whom);
}

size_t Arena::State::growth_bytes(const Lane& lane, size_t bytes) const {
  if (!settings.grow_by_doubling) return bytes;
  const size_t least =
      shrunk && settings.growth_after_shrink_bytes ? settings.growth_after_shrink_bytes : settings.first_chunk_bytes;
  return std::max(bytes, whole_units(std::min(std::max(lane.held_bytes, least), settings.largest_growth_bytes)));
}

// From what costs nothing to what is the last resort.
void* Arena::State::grow(Lock& lock, Lane& lane, size_t bytes, For whom) {
  std::string why;
  {
    Leaving leaving(*this);
    if (harvest(leaving))
      if (void* address = take(lane, bytes, whom)) return lock.unlock(), address;
    lock.unlock();  // before things leave
  }
  lock.lock();
  const size_t growth = growth_bytes(lane, bytes);
  for (const size_t chunk_bytes : {growth, bytes}) {
    if (void* address = add_chunk(lock, lane, chunk_bytes, bytes, whom, why)) return address;
    if (growth == bytes) break;
  }
  if (void* address = borrow(lock, lane, bytes, whom, false)) return address;
  Leaving leaving(*this);
  harvest_all(lock, leaving);
  if (void* address = take(lane, bytes, whom)) return lock.unlock(), address;
  if (void* address = borrow(lock, lane, bytes, whom, true)) return lock.unlock(), address;
  collect_empty(leaving, true);
  lock.unlock();
  leaving.settle();
  lock.lock();
  if (void* address = add_chunk(lock, lane, bytes, bytes, whom, why)) return address;
  exhausted(lock, bytes, why);
}

void* Arena::State::add_chunk(Lock& lock, Lane& lane, size_t chunk_bytes, size_t bytes, For whom, std::string& why) {
  lock.unlock();
  auto* const chunk = static_cast<char*>(take_piece({}, chunk_bytes, why));
  lock.lock();
  if (!chunk) return nullptr;
  if (lane.stream && lane.stream.capture_status() != device::CaptureStatus::none) ++stats.driver_allocations_in_capture;
  ++stats.driver_allocations;
  lane.blocks.add(chunk, chunk_bytes);
  lane.held_bytes += chunk_bytes;
  return take(lane, bytes, whom);
}

void* Arena::State::take_piece(StreamRef stream, size_t bytes, std::string& why) {
  if (!account->charge(bytes)) {
    why.clear();  // the limit says it
    return nullptr;
  }
  try {
    return ordered && stream ? ordered->allocate(stream, bytes) : source->take(bytes);
  } catch (const Error& e) {
    account->held_bytes -= bytes;
    if (e.code() != Code::out_of_memory) throw;
    why = e.what();
    return nullptr;
  }
}

// Whole chunks move to the lane; a free block of a chunk that is in use is lent, and returns to the chunk's lane.
void* Arena::State::borrow(Lock& lock, Lane& lane, size_t bytes, For whom, bool busy_too) {
  if (void* address = borrow_from(common, lock, lane, bytes, whom, busy_too)) return address;
  for (size_t i = 0; i < lanes.size(); ++i)  // they may become more meanwhile
    if (void* address = borrow_from(*lanes[i], lock, lane, bytes, whom, busy_too)) return address;
  return nullptr;
}

void* Arena::State::borrow_from(Lane& other, Lock& lock, Lane& lane, size_t bytes, For whom, bool busy_too) {
  if (&other == &lane || other.blocks.free_bytes() < bytes) return nullptr;
  Tail busy;
  if (other.stream && !is_idle(other.stream)) {
    if (!busy_too || !(busy = tail(other.stream))) return nullptr;
  }
  char* chunk = nullptr;
  const size_t chunk_bytes = other.blocks.remove_empty([&](char* address, size_t size) {
    if (chunk || size < bytes) return false;
    chunk = address;
    return true;
  });
  Block* const block = chunk ? nullptr : other.blocks.take(bytes, settings.dead_bytes);
  if (!chunk && !block) return nullptr;
  other.held_bytes -= chunk_bytes;

  bool idle = true;
  if (busy) {
    lock.unlock();
    idle = wait_for({busy});
    lock.lock();
  }
  if (block) {
    if (idle) return hand_out(other, block, bytes, whom, true);
    other.blocks.put(block);
    return nullptr;
  }
  Lane& home = idle ? lane : other;
  home.blocks.add(chunk, chunk_bytes);
  home.held_bytes += chunk_bytes;
  return idle ? take(lane, bytes, whom) : nullptr;
}

void* Arena::State::allocate_piece(Lock& lock, Lane& lane, size_t bytes, For whom) {
  Leaving leaving(*this);
  const StreamRef stream = lane.stream;
  std::string why;
  harvest(leaving);
  lock.unlock();
  leaving.settle();
  void* address = take_piece(stream, bytes, why);
  if (!address) {
    lock.lock();
    harvest_all(lock, leaving);
    collect_empty(leaving, true);
    lock.unlock();
    leaving.settle();
    if (ordered) ordered->shrink();
    address = take_piece(stream, bytes, why);
  }
  lock.lock();
  if (!address) exhausted(lock, bytes, why);
  uses.insert_or_assign(address, Use{&lane, nullptr, lane.tenant, bytes, whom});
  count(bytes);
  ++stats.driver_allocations;
  return address;
}

void* Arena::State::reserve(size_t bytes, For whom) {
  Lock lock(mutex);
  ++stats.reserves;
  return allocate_piece(lock, common, bytes, whom);
}

void* Arena::State::allocate_from(const GraphPool& graph_pool, size_t bytes, StreamRef stream, For whom) {
  const std::shared_ptr<GraphPool::State> pool = graph_pool.state_;
  std::string why;
  const auto take = [&]() -> GraphPool::State::Taken {
    try {
      return pool->take(bytes, stream, account);
    } catch (const Error& e) {
      if (e.code() != Code::out_of_memory) throw;
      why = e.what();
      return {};
    }
  };
  GraphPool::State::Taken taken = take();
  if (!taken.block) {
    drain();
    taken = take();
  }
  Lock lock(mutex);
  if (!taken.block) exhausted(lock, bytes, why);
  pool_uses.insert_or_assign(taken.block->address, PoolUse{pool, taken.lane, taken.block, whom});
  count(bytes);
  if (taken.grown_bytes) {
    ++stats.driver_allocations;
    ++stats.driver_allocations_in_capture;
  }
  lock.unlock();
  if (taken.grown_bytes && pool->grew) pool->grew(taken.grown_bytes);
  return taken.block->address;
}

void Arena::State::free(void* address) {
  const auto meter_free = [](const For& whom, size_t bytes) {
    if (here.meter && whom.meter == here.meter->serial()) here.meter->free(bytes);
  };
  std::shared_ptr<GraphPool::State> last_holder;  // let go after the lock, because it may have to wait
  Leaving leaving(*this);
  std::lock_guard lock(mutex);
  if (const auto found = uses.find(address); found != uses.end()) {
    const Use use = found->second;
    uses.erase(found);
    stats.in_use_bytes -= use.bytes;
    meter_free(use.whom, use.bytes);
    const bool in_order = use.lane->stream && use.lane->tenant == use.tenant;
    if (in_order && use.block) return use.lane->blocks.put(use.block);
    if (in_order && ordered && use.lane->stream.capture_status() == device::CaptureStatus::none) {
      ordered->free(use.lane->stream, address);
      account->held_bytes -= use.bytes;
      return;
    }
    Freed now{tails(device), address, use};
    if (now.tails.empty()) return recycle(now, leaving);
    freed.push_back(std::move(now));
    if (!use.block) harvest(leaving);  // nobody else may come by soon
  } else if (const auto in_pool = pool_uses.find(address); in_pool != pool_uses.end()) {
    PoolUse use = std::move(in_pool->second);
    pool_uses.erase(in_pool);
    stats.in_use_bytes -= use.block->bytes;
    meter_free(use.whom, use.block->bytes);
    use.pool->put(use.lane, use.block);
    last_holder = std::move(use.pool);
  } else {
    std::fprintf(stderr, "encore: %s: %p was freed, but is not in use\n", owner.c_str(), address);
  }
}

void Arena::State::recycle(const Freed& idle, Leaving& leaving) {
  if (idle.use.block) return idle.use.lane->blocks.put(idle.use.block);
  leaving.pieces.emplace_back(idle.address, idle.use.bytes);
}

bool Arena::State::harvest(Leaving& leaving) {
  bool any = false;
  for (; !freed.empty() && is_done(freed.front().tails); freed.pop_front(), any = true) recycle(freed.front(), leaving);
  return any;
}

void Arena::State::harvest_all(Lock& lock, Leaving& leaving) {
  std::vector<Tail> waited_for;
  for (const Freed& each : freed) waited_for.insert(waited_for.end(), each.tails.begin(), each.tails.end());
  lock.unlock();
  wait_for(waited_for);
  lock.lock();
  harvest(leaving);
}

void Arena::State::collect_empty(Leaving& leaving, bool busy_too) {
  const auto collect = [&](Lane& lane) {
    if (!lane.blocks.has_empty_chunk()) return;
    Tail busy;
    if (lane.stream && !is_idle(lane.stream) && (!busy_too || !(busy = tail(lane.stream)))) return;
    lane.held_bytes -= lane.blocks.remove_empty([&](char* chunk, size_t bytes) {
      leaving.pieces.emplace_back(chunk, bytes);
      return true;
    });
    if (busy) leaving.tails.push_back(std::move(busy));
  };
  collect(common);
  for (auto& lane : lanes) collect(*lane);
}

void Arena::State::shrink() {
  {
    Leaving leaving(*this);
    std::lock_guard lock(mutex);
    harvest(leaving);
    collect_empty(leaving, false);
    shrunk = true;
    ++stats.shrinks;
  }
  source->shrink();
}

// Waits for everything, and gives back what can be.
void Arena::State::drain() {
  Leaving leaving(*this);
  Lock lock(mutex);
  harvest_all(lock, leaving);
  collect_empty(leaving, true);
  lock.unlock();
}

std::vector<Holder> Arena::State::holders() const {
  std::map<const char*, Holder> by_label;
  const auto add = [&](const char* label, size_t bytes) {
    Holder& holder = by_label[label];
    holder.bytes += bytes;
    ++holder.blocks;
  };
  for (const auto& [address, use] : uses) add(use.whom.label, use.bytes);
  for (const auto& [address, use] : pool_uses) add(use.whom.label, use.block->bytes);
  std::vector<Holder> holders;
  for (auto& [label, holder] : by_label) {
    const auto same = std::ranges::find(holders, label, &Holder::name);  // by several addresses
    if (same == holders.end()) {
      holders.push_back({label, holder.bytes, holder.blocks});
    } else {
      same->bytes += holder.bytes;
      same->blocks += holder.blocks;
    }
  }
  std::ranges::stable_sort(holders, std::ranges::greater(), &Holder::bytes);
  return holders;
}

void Arena::State::exhausted(Lock& lock, size_t bytes, const std::string& why) const {
  constexpr size_t kMostHolders = 5;
  const size_t limit = settings.max_bytes, held = account->held_bytes, in_use = stats.in_use_bytes;
  std::string largest;
  const std::vector<Holder> all = holders();
  for (size_t i = 0; i < std::min(all.size(), kMostHolders); ++i)
    largest += text(i ? ", " : "; the largest holders: ", all[i].name, " with ", all[i].bytes, " bytes in ",
                    all[i].blocks, all[i].blocks == 1 ? " block" : " blocks");
  lock.unlock();
  const device::MemoryInfo info = device::memory_info(device);
  fail(Code::out_of_memory, owner, ": device memory is exhausted: ", mebibytes(bytes), " wanted, ", mebibytes(held),
       " held, of which ", mebibytes(in_use), " in use and ", mebibytes(account->graph_bytes),
       " kept for captured graphs; the limit is ", limit == SIZE_MAX ? "none" : mebibytes(limit), "; device ", device,
       " has ", mebibytes(info.free_bytes), " of ", mebibytes(info.total_bytes), " free", largest,
       why.empty() ? "" : "; ", why,
       why.empty() && limit != SIZE_MAX ? "; raise the limit or use smaller batches"
                                        : "; use smaller batches or free memory of the device");
}

Arena::Arena(int device, Settings settings, std::string owner)
    : state_(std::make_shared<State>(device, settings, std::move(owner))) {
  std::lock_guard lock(arenas().mutex);
  std::erase_if(arenas().states, [](const auto& state) { return state.expired(); });
  arenas().states.push_back(state_);
}

Arena::~Arena() {
  try {
    state_->drain();
    std::lock_guard lock(state_->mutex);
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
  const State::For whom{label_or(stream ? kAheadOfRun : kOutsideOfRuns), meter_here()};
  const auto& pool = PoolScope::current();
  void* address = pool && pool->state_->source->device == state_->device
                      ? state_->allocate_from(*pool, whole, stream, whom)
                      : state_->allocate(whole, stream, whom);
  if (here.meter) here.meter->add(whole);
  return address;
}

void* Arena::reserve(size_t bytes) {
  return bytes == 0 ? nullptr : state_->reserve(whole_units(bytes), {label_or(kReserved), 0});
}

void Arena::free(void* address) noexcept {
  if (!address) return;
  try {
    state_->free(address);
  } catch (const std::exception& e) {  // the block stays out of use
    std::fprintf(stderr, "encore: %s: memory could not be freed: %s\n", state_->owner.c_str(), e.what());
  }
}

void Arena::shrink() { state_->shrink(); }

Stats Arena::stats() const {
  Stats stats;
  {
    std::lock_guard lock(state_->mutex);
    stats = state_->stats;
  }
  const Account& account = *state_->account;
  stats.held_bytes = state_->ordered ? state_->ordered->held_bytes() : size_t(account.held_bytes);
  stats.graph_bytes = account.graph_bytes;
  stats.limit_bytes = account.limit_bytes;
  return stats;
}

std::vector<Holder> Arena::holders() const {
  std::lock_guard lock(state_->mutex);
  return state_->holders();
}

const std::shared_ptr<Source>& Arena::source() const { return state_->source; }

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
