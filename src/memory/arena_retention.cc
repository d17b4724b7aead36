// Blocks that captured graphs keep from being used again.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "device/gone.h"
#include "memory/arena_state.h"
#include "memory/meter.h"
#include "memory/pool_scope.h"

namespace encore::memory {

namespace {

size_t bytes_of(const auto& use) {
  if constexpr (requires { use.bytes; })
    return use.bytes;
  else
    return use.block->bytes;
}

// The use whose block holds the address: mostly the block's own, which is found at once.
template <class Uses>
auto holding(Uses& uses, const void* address) {
  const auto found = uses.find(const_cast<void*>(address));
  if (found != uses.end()) return found;
  const auto* const at = static_cast<const char*>(address);
  return std::ranges::find_if(uses, [&](const auto& each) {
    const auto* const begin = static_cast<const char*>(each.first);
    return begin <= at && at < begin + bytes_of(each.second);
  });
}

}  // namespace

std::optional<Retainable::Retained> Arena::State::retain(const void* address, const GivenBack& told) {
  const auto capturing = PoolScope::current();
  std::lock_guard lock(mutex);
  const auto add = [&](const void* block) {
    ByGraphs& graphs = retained[block];
    ++graphs.graphs;
    graphs.told.add(told);
  };
  if (const auto found = holding(uses, address); found != uses.end()) {
    add(found->first);
    return Retained{static_cast<char*>(found->first), found->second.bytes, true};
  }
  const auto found = holding(pool_uses, address);
  if (found == pool_uses.end()) return std::nullopt;
  const bool others = !capturing || capturing->state_ != found->second.pool;
  if (others) add(found->first);
  return Retained{static_cast<char*>(found->first), found->second.block->bytes, others};
}

// True if the block has left its owner's hands, but not those of graphs.
bool Arena::State::give_up(void* address) {
  const auto kept = retained.find(address);
  if (kept == retained.end()) return false;
  if (std::exchange(kept->second.given_up, true)) {
    std::fprintf(stderr, "encore: %s: %p was freed twice\n", owner.c_str(), address);
    return true;
  }
  ++given_up;
  kept->second.told.tell();
  const auto leave = [&](auto& use) {
    stats.in_use_bytes -= bytes_of(use);
    Meter::free(use.whom.meter, bytes_of(use));
    use.whom = {kForGraphs, 0};
  };
  if (const auto found = uses.find(address); found != uses.end()) {
    leave(found->second);
    account->graph_bytes += found->second.bytes;
  } else {
    PoolUse& use = pool_uses.at(address);
    leave(use);  // which are counted with the pool
    use.pool->note_given_back();
  }
  return true;
}

void Arena::State::let_go(const void* block) noexcept {
  try {
    {
      std::lock_guard lock(mutex);
      const auto kept = retained.find(block);
      if (--kept->second.graphs > 0) return;
      const bool was_given_up = kept->second.given_up;
      retained.erase(kept);
      if (!was_given_up) return;
      --given_up;
      if (const auto found = uses.find(const_cast<void*>(block)); found != uses.end()) {
        account->graph_bytes -= found->second.bytes;
        stats.in_use_bytes += found->second.bytes;
      } else {
        stats.in_use_bytes += pool_uses.at(const_cast<void*>(block)).block->bytes;
      }
    }
    free(const_cast<void*>(block), false);
    if (orphaned) drain();
  } catch (const std::exception& e) {  // the block stays out of use
    device::complain(owner + ": memory could not be freed", e);
  }
}

}  // namespace encore::memory
