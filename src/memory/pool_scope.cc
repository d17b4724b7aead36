#include "memory/pool_scope.h"

#include <mutex>
#include <unordered_map>
#include <utility>

#include "memory/here.h"

namespace encore::memory {

namespace {

struct Open {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::shared_ptr<GraphPool>> pools;  // by scope
  uint64_t last = 0;
};
Open& open() {
  static auto& open = *new Open;
  return open;
}

uint64_t add(std::shared_ptr<GraphPool> pool) {
  const std::lock_guard lock(open().mutex);
  open().pools.emplace(++open().last, std::move(pool));
  return open().last;
}

}  // namespace

PoolScope::PoolScope(std::shared_ptr<GraphPool> pool)
    : serial_(add(std::move(pool))), previous_(std::exchange(here.pool_scope, serial_)) {}
PoolScope::~PoolScope() {
  if (here.pool_scope == serial_) here.pool_scope = previous_;
  decltype(open().pools)::node_type gone;  // after the lock, because it may have to wait
  const std::lock_guard lock(open().mutex);
  gone = open().pools.extract(serial_);
}

std::shared_ptr<GraphPool> PoolScope::current() {
  if (!here.pool_scope) return nullptr;
  const std::lock_guard lock(open().mutex);
  const auto found = open().pools.find(here.pool_scope);
  return found == open().pools.end() ? nullptr : found->second;
}

}  // namespace encore::memory
