// The memory of the graph that the calling thread captures.
#pragma once
#include <cstdint>
#include <memory>

#include "memory/graph_pool.h"
#include "memory/here.h"
#include "memory/retention.h"

namespace encore::memory {

// While in scope, the calling thread's allocations on any arena of the pool's device come from the pool, and what it
// notes to be used is retained. Another thread may end it, when a session ends whose run never did.
class PoolScope {
 public:
  explicit PoolScope(std::shared_ptr<GraphPool> pool, std::shared_ptr<Retention> retention = nullptr);
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  // The calling thread's; null outside of any scope.
  static std::shared_ptr<GraphPool> current();
  // What is being enqueued reads or writes there.
  static void note(const void* address) {
    if (here.pool_scope) retain(address);
  }

 private:
  static void retain(const void* address);
  const uint64_t serial_, previous_;
};

}  // namespace encore::memory
