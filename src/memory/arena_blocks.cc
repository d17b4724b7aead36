// Chunks cut into blocks, which the lanes of an arena reuse, lend and give to one another.
#include <algorithm>

#include "device/device.h"
#include "device/error.h"
#include "memory/arena_state.h"

namespace encore::memory {

using device::StreamRef;

Arena::State::Lane& Arena::State::lane_of(StreamRef stream) {
  if (!stream) return common;
  if (last_lane && last_lane->stream == stream) return *last_lane;
  auto found = std::ranges::find(lanes, stream, [](const auto& lane) { return lane->stream; });
  if (found == lanes.end()) {
    if (!is_enlisted(stream)) fail(Code::internal, "memory was asked for by a stream that is not enlisted");
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
  const device::Current current(device);
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
  ++stats.driver_allocations;
  lane.blocks.add(chunk, chunk_bytes);
  lane.held_bytes += chunk_bytes;
  return take(lane, bytes, whom);
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

}  // namespace encore::memory
