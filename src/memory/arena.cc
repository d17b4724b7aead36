#include "memory/arena.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <vector>

#include "device/device.h"
#include "device/error.h"
#include "device/gone.h"
#include "device/label.h"
#include "memory/arena_state.h"
#include "memory/meter.h"
#include "memory/pool_scope.h"

namespace encore::memory {

using device::StreamRef;

namespace {

const char* label_or(const char* otherwise) {
  const char* const label = device::Label::current();
  return *label ? label : otherwise;
}

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

void* Arena::State::take_piece(StreamRef stream, size_t bytes, std::string& why) {
  if (!account->charge(bytes)) {
    why.clear();  // the limit says it
    return nullptr;
  }
  try {
    return ordered && stream ? ordered->allocate(stream, bytes) : source->take(bytes);
  } catch (const std::exception& e) {
    account->held_bytes -= bytes;
    const auto* const error = dynamic_cast<const Error*>(&e);
    if (!error || error->code() != Code::out_of_memory) throw;
    why = e.what();
    return nullptr;
  }
}

void* Arena::State::allocate_piece(Lock& lock, Lane& lane, size_t bytes, For whom) {
  const device::Current current(device);
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
  const device::Current current(device);
  const std::shared_ptr<GraphPool::State> pool = graph_pool.state_;
  std::string why;
  const auto take = [&](bool last) -> GraphPool::State::Taken {
    try {
      return pool->take(bytes, stream, account, last);
    } catch (const Error& e) {
      if (e.code() != Code::out_of_memory) throw;
      why = e.what();
      return {};
    }
  };
  GraphPool::State::Taken taken = take(false);
  if (!taken.block) {
    drain();
    taken = take(true);
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

void Arena::State::free(void* address, bool for_its_stream, StreamRef but) {
  std::shared_ptr<GraphPool::State> last_holder;  // let go after the lock, because it may have to wait
  Leaving leaving(*this);
  std::lock_guard lock(mutex);
  if (give_up(address)) return;
  if (const auto found = uses.find(address); found != uses.end()) {
    const Use use = found->second;
    const auto forget = [&] {
      uses.erase(found);
      stats.in_use_bytes -= use.bytes;
      Meter::free(use.whom.meter, use.bytes);
    };
    const bool has_stream = use.lane->stream && use.lane->tenant == use.tenant;
    const auto others_are_idle = [&] {
      const device::Current current(device);
      return tails(device, use.lane->stream).empty();
    };
    const bool in_order = has_stream && ((for_its_stream && use.lane->stream != but) || others_are_idle());
    if (in_order && use.block) {
      forget();
      return use.lane->blocks.put(use.block);
    }
    const device::Current current(device);
    if (in_order && ordered && use.lane->stream.capture_status() == device::CaptureStatus::none) {
      ordered->free(use.lane->stream, address);
      forget();
      account->held_bytes -= use.bytes;
      return;
    }
    Freed now{tails(device), address, use};
    forget();
    if (now.tails.empty()) return recycle(now, leaving);
    freed.push_back(std::move(now));
    if (!use.block) harvest(leaving);  // nobody else may come by soon
  } else if (const auto in_pool = pool_uses.find(address); in_pool != pool_uses.end()) {
    PoolUse use = std::move(in_pool->second);
    pool_uses.erase(in_pool);
    stats.in_use_bytes -= use.block->bytes;
    Meter::free(use.whom.meter, use.block->bytes);
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

void Arena::State::shrink() {
  const device::Current current(device);
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

// The stream's free memory is idle now. What is in use is freed with everybody's tails later, because its tenant has
// changed.
void Arena::State::stream_is_gone(StreamRef stream) {
  std::lock_guard lock(mutex);
  last_lane = nullptr;
  for (auto& lane : lanes) {
    if (lane->stream != stream) continue;
    lane->stream = {};
    ++lane->tenant;
  }
}

// Waits for everything, and gives back what can be.
void Arena::State::drain() {
  const device::Current current(device);
  Leaving leaving(*this);
  Lock lock(mutex);
  harvest_all(lock, leaving);
  collect_empty(leaving, true);
  lock.unlock();
}

bool Arena::State::empty_hoards() {
  std::vector<std::shared_ptr<Hoard>> asked;
  {
    const std::lock_guard lock(mutex);
    for (const auto& each : hoards)
      if (auto hoard = each.lock()) asked.push_back(std::move(hoard));
  }
  bool any = false;
  for (const auto& hoard : asked) any |= hoard->give_back();
  return any;
}

Arena::Arena(int device, Settings settings, std::string owner)
    : state_(std::make_shared<State>(device, settings, std::move(owner))) {
  listen(state_);
  offer(state_);
}

Arena::~Arena() {
  try {
    state_->orphaned = true;
    state_->drain();
    std::lock_guard lock(state_->mutex);
    const size_t left = state_->uses.size() + state_->pool_uses.size() - state_->given_up;
    if (left == 0 && state_->freed.empty()) return;
    std::fprintf(stderr,
                 "encore: %s: %zu blocks (%zu bytes) were still in use at the end; their memory stays allocated\n",
                 state_->owner.c_str(), left, state_->stats.in_use_bytes);
    if (!state_->pool_uses.empty()) new std::shared_ptr<State>(state_);  // holds the pools
  } catch (const std::exception& e) {
    device::complain("memory could not be given back", e);
  }
}

void* Arena::allocate(size_t bytes, StreamRef stream) {
  if (bytes == 0) return nullptr;
  const size_t whole = whole_units(bytes);
  const State::For whom{label_or(stream ? kAheadOfRun : kOutsideOfRuns), Meter::current()};
  const auto pool = PoolScope::current();
  void* const address = unless_exhausted([&] {
    return pool && pool->state_->source->device == state_->device ? state_->allocate_from(*pool, whole, stream, whom)
                                                                  : state_->allocate(whole, stream, whom);
  });
  Meter::add(whole);
  return address;
}

void* Arena::reserve(size_t bytes) {
  if (bytes == 0) return nullptr;
  return unless_exhausted([&] { return state_->reserve(whole_units(bytes), {label_or(kReserved), 0}); });
}

template <class Allocate>
void* Arena::unless_exhausted(Allocate allocate) {
  try {
    return allocate();
  } catch (const Error& error) {
    if (error.code() != Code::out_of_memory || !state_->empty_hoards()) throw;
    return allocate();
  }
}

void Arena::add(std::weak_ptr<Hoard> hoard) {
  const std::lock_guard lock(state_->mutex);
  std::erase_if(state_->hoards, [](const auto& each) { return each.expired(); });
  state_->hoards.push_back(std::move(hoard));
}

void Arena::free(void* address, bool for_its_stream, StreamRef but) noexcept {
  if (!address) return;
  try {
    state_->free(address, for_its_stream, but);
  } catch (const std::exception& e) {  // the block stays out of use
    device::complain(state_->owner + ": memory could not be freed", e);
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

}  // namespace encore::memory
