// The memory of the graph that the calling thread captures.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>

#include "memory/graph_pool.h"
#include "memory/open_scope.h"
#include "memory/retention.h"

namespace encore::memory {

// While in scope, the calling thread's allocations on any arena of the pool's device come from the pool, and what it
// notes to be used is retained.
class PoolScope {
 public:
  explicit PoolScope(std::shared_ptr<GraphPool> pool, std::shared_ptr<Retention> retention = nullptr)
      : scope_({std::move(pool), std::move(retention)}) {}
  // The calling thread's; null outside of any scope.
  static std::shared_ptr<GraphPool> current();
  static bool is_open() { return here.pool_scope; }  // for the calling thread
  // What is being enqueued reads or writes there.
  static void note(const void* address) {
    if (is_open()) retain(address);
  }

 private:
  struct Memory {
    std::shared_ptr<GraphPool> pool;
    std::shared_ptr<Retention> retention;
  };
  using Scope = OpenScope<Memory, &Here::pool_scope>;
  static void retain(const void* address);
  Scope scope_;
};

}  // namespace encore::memory
