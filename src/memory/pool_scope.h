// Where the calling thread's allocations come from while it captures.
#pragma once
#include <cstdint>
#include <memory>

#include "memory/graph_pool.h"

namespace encore::memory {

// While in scope, the calling thread's allocations on any arena of the pool's device come from the pool. Another thread
// may end it, when a session ends whose run never did.
class PoolScope {
 public:
  explicit PoolScope(std::shared_ptr<GraphPool> pool);
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  // The calling thread's; null outside of any scope.
  static std::shared_ptr<GraphPool> current();

 private:
  const uint64_t serial_, previous_;
};

}  // namespace encore::memory
