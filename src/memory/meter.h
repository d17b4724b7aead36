// How much memory a warm-up needs.
#pragma once
#include <cstddef>
#include <cstdint>

namespace encore::memory {

// While in scope, measures what the calling thread allocates from arenas. Another thread may end it, when a session
// ends whose run never did.
class Meter {
 public:
  Meter();
  ~Meter();
  Meter(const Meter&) = delete;
  size_t peak_bytes() const;  // the most that was in use at one time

  // For arenas, of the calling thread's:
  static uint64_t current();  // 0 if it has none
  static void add(size_t bytes);
  static void free(uint64_t meter, size_t bytes);  // nothing, if it is another

 private:
  const uint64_t serial_, previous_;
};

}  // namespace encore::memory
