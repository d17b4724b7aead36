#include "memory/pool_scope.h"

namespace encore::memory {

std::shared_ptr<GraphPool> PoolScope::current() {
  std::shared_ptr<GraphPool> pool;
  Scope::with_current([&](const Memory& memory) { pool = memory.pool; });
  return pool;
}

void PoolScope::retain(const void* address) {
  std::shared_ptr<Retention> retention;  // works without the lock
  Scope::with_current([&](const Memory& memory) { retention = memory.retention; });
  if (retention) retention->note(address);
}

}  // namespace encore::memory
