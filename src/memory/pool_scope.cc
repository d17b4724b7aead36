#include "memory/pool_scope.h"

#include <mutex>
#include <unordered_map>
#include <utility>

namespace encore::memory {

namespace {

struct Memory {
  std::shared_ptr<GraphPool> pool;
  std::shared_ptr<Retention> retention;
};
struct Open {
  std::mutex mutex;
  std::unordered_map<uint64_t, Memory> graphs;  // by scope
  uint64_t last = 0;
};
Open& open() {
  static auto& open = *new Open;
  return open;
}

uint64_t add(Memory memory) {
  const std::lock_guard lock(open().mutex);
  open().graphs.emplace(++open().last, std::move(memory));
  return open().last;
}

Memory memory_here() {
  if (!here.pool_scope) return {};
  const std::lock_guard lock(open().mutex);
  const auto found = open().graphs.find(here.pool_scope);
  return found == open().graphs.end() ? Memory() : found->second;
}

}  // namespace

PoolScope::PoolScope(std::shared_ptr<GraphPool> pool, std::shared_ptr<Retention> retention)
    : serial_(add({std::move(pool), std::move(retention)})), previous_(std::exchange(here.pool_scope, serial_)) {}
PoolScope::~PoolScope() {
  if (here.pool_scope == serial_) here.pool_scope = previous_;
  decltype(open().graphs)::node_type gone;  // after the lock, because it may have to wait
  const std::lock_guard lock(open().mutex);
  gone = open().graphs.extract(serial_);
}

std::shared_ptr<GraphPool> PoolScope::current() { return memory_here().pool; }

void PoolScope::retain(const void* address) {
  if (const auto retention = memory_here().retention) retention->note(address);
}

}  // namespace encore::memory
