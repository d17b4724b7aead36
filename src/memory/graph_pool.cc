#include "memory/graph_pool.h"

#include <algorithm>
#include <utility>

#include "device/device.h"
#include "device/error.h"
#include "device/gone.h"
#include "memory/graph_pool_state.h"
#include "memory/streams.h"

namespace encore::memory {

namespace {
constexpr size_t kSmallestGrowth = size_t(64) << 10, kLargestGrowth = size_t(64) << 20;
}

GraphPool::State::State(std::shared_ptr<Source> source, size_t first_chunk_bytes, std::function<void(size_t)> grew)
    : source(std::move(source)), grew(std::move(grew)) {
  if (first_chunk_bytes == 0) return;
  first_chunk.second = whole_units(first_chunk_bytes);
  first_chunk.first = static_cast<char*>(this->source->take(first_chunk.second));
  chunks.push_back(first_chunk.first);
  held_bytes = first_chunk.second;
}

GraphPool::State::~State() {
  // Work on any stream may still read what the graph wrote. If the device cannot say when it is done, the memory stays.
  bool idle = false;
  try {
    const device::Current current(source->device);
    idle = wait_for(tails(source->device));
  } catch (const std::exception& e) {
    device::complain("the memory of a graph is lost", e);
  }
  if (idle)
    for (void* chunk : chunks) source->give_back(chunk);
  if (!account) return;
  account->held_bytes -= held_bytes;
  account->graph_bytes -= held_bytes;
}

GraphPool::State::Taken GraphPool::State::take(size_t bytes, device::StreamRef stream,
                                               const std::shared_ptr<Account>& payer, bool last) {
  std::unique_lock lock(mutex);
  if (!account) {
    void* unaffordable = nullptr;  // then the graph gets its memory bit by bit
    if (!payer->charge(held_bytes)) {
      if (!last) fail(Code::out_of_memory, "the limit is reached");
      unaffordable = std::exchange(first_chunk, {}).first;
      chunks.clear();
      held_bytes = 0;
    }
    payer->graph_bytes += held_bytes;
    account = payer;
    if (unaffordable) {
      lock.unlock();
      source->give_back(unaffordable);
      lock.lock();
    }
  }
  auto found = std::ranges::find(lanes, stream.native(), [](const auto& lane) { return lane->stream; });
  if (found == lanes.end()) {
    lanes.push_back(std::make_unique<Lane>(stream.native()));
    found = lanes.end() - 1;
  }
  Lane& lane = **found;
  if (first_chunk.first && stream) {
    lane.blocks.add(first_chunk.first, first_chunk.second);
    first_chunk = {};
  } else if (first_chunk.second > bytes) {  // what names no stream gets a piece of it, for good
    lane.blocks.add(first_chunk.first, bytes);
    first_chunk.first += bytes;
    first_chunk.second -= bytes;
  }
  if (Block* block = lane.blocks.take(bytes)) return {&lane, block, 0};

  const size_t roomy = std::max(bytes, std::clamp(whole_units(held_bytes), kSmallestGrowth, kLargestGrowth));
  for (size_t growth : {roomy, bytes}) {
    if (!account->charge(growth)) {
      if (growth == bytes) fail(Code::out_of_memory, "the limit is reached");
      continue;
    }
    chunks.reserve(chunks.size() + 1);
    lock.unlock();
    char* chunk = nullptr;
    try {
      chunk = static_cast<char*>(source->take(growth));
    } catch (const Error& e) {
      account->held_bytes -= growth;
      if (e.code() != Code::out_of_memory || growth == bytes) throw;
    }
    lock.lock();
    if (!chunk) continue;
    chunks.push_back(chunk);
    held_bytes += growth;
    account->graph_bytes += growth;
    lane.blocks.add(chunk, growth);
    return {&lane, lane.blocks.take(bytes), growth};
  }
  fail(Code::internal, "a graph's memory could not grow");
}

void GraphPool::State::put(Lane* lane, Block* block) {
  note_given_back();
  std::lock_guard lock(mutex);
  if (lane->stream) lane->blocks.put(block);
}

GraphPool::GraphPool(std::shared_ptr<Source> source, size_t first_chunk_bytes, std::function<void(size_t)> grew)
    : state_(std::make_shared<State>(std::move(source), first_chunk_bytes, std::move(grew))) {}
GraphPool::~GraphPool() = default;

size_t GraphPool::held_bytes() const {
  std::lock_guard lock(state_->mutex);
  return state_->held_bytes;
}

void GraphPool::complete() { state_->complete = true; }
bool GraphPool::is_given_back() const { return state_->given_back.load(std::memory_order_relaxed); }

void GraphPool::keep(std::shared_ptr<void> thing) {
  std::lock_guard lock(state_->mutex);
  state_->kept.push_back(std::move(thing));
}

}  // namespace encore::memory
