// Who holds an arena's memory, and the error when there is no more.
#include <algorithm>
#include <functional>
#include <map>

#include "device/error.h"
#include "device/memory.h"
#include "memory/arena_state.h"

namespace encore::memory {
namespace {

std::string in_words(size_t bytes) {
  return bytes < 1 << 20 ? text(bytes, " bytes") : text(bytes, " bytes (", bytes >> 20, " MiB)");
}

}  // namespace

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
  fail(Code::out_of_memory, owner, ": device memory is exhausted: ", in_words(bytes), " wanted, ", in_words(held),
       " held, of which ", in_words(in_use), " in use and ", in_words(account->graph_bytes),
       " kept for captured graphs; the limit is ", limit == SIZE_MAX ? "none" : in_words(limit), "; device ", device,
       " has ", in_words(info.free_bytes), " of ", in_words(info.total_bytes), " free", largest,
       why.empty() ? "" : "; ", why,
       why.empty() && limit != SIZE_MAX ? "; raise the limit or use smaller batches"
                                        : "; use smaller batches or free memory of the device");
}

}  // namespace encore::memory
