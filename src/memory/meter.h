// How much memory a warm-up needs.
#pragma once
#include <cstddef>
#include <cstdint>

#include "memory/open_scope.h"

namespace encore::memory {

// While in scope, measures what the calling thread allocates from arenas.
class Meter {
 public:
  Meter() : scope_({}) {}
  size_t peak_bytes() const { return scope_.state().peak_bytes; }  // the most that was in use at one time

  // For arenas, of the calling thread's:
  static uint64_t current() { return here.meter; }  // 0 if it has none
  static void add(size_t bytes);
  static void free(uint64_t meter, size_t bytes);  // nothing, if it is another

 private:
  struct Count {
    size_t bytes = 0, peak_bytes = 0;
  };
  using Scope = OpenScope<Count, &Here::meter>;
  Scope scope_;
};

}  // namespace encore::memory
