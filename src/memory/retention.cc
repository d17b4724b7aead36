#include "memory/retention.h"

#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

namespace encore::memory {

namespace {

struct Offers {
  std::mutex mutex;
  std::vector<std::weak_ptr<Retainable>> all;
};
Offers& offers() {
  static auto& offers = *new Offers;  // threads that end late still use it
  return offers;
}

std::vector<std::shared_ptr<Retainable>> offered() {
  std::vector<std::shared_ptr<Retainable>> alive;
  const std::lock_guard lock(offers().mutex);
  for (const auto& each : offers().all)
    if (auto memory = each.lock()) alive.push_back(std::move(memory));
  return alive;
}

}  // namespace

void offer(std::weak_ptr<Retainable> memory) {
  const std::lock_guard lock(offers().mutex);
  std::erase_if(offers().all, [](const auto& each) { return each.expired(); });
  offers().all.push_back(std::move(memory));
}

Retention::~Retention() {
  for (const auto& [block, known] : known_)
    if (known.of) known.of->let_go(block);
}

void Retention::note(const void* address) {
  const auto* const at = static_cast<const char*>(address);
  const auto after = known_.upper_bound(at);
  if (after != known_.begin() && at < std::prev(after)->second.end) return;
  for (auto& memory : offered()) {
    const auto found = memory->retain(at, given_back_);
    if (!found) continue;
    if (found->counts) bytes_ += found->bytes;
    known_.insert_or_assign(found->address, Known{found->address + found->bytes, found->counts ? memory : nullptr});
    return;
  }
}

}  // namespace encore::memory
