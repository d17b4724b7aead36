// What the calling thread is in, by number: 0 is none. Another thread may close what this one has opened, which a
// number survives.
#pragma once
#include <cstdint>

namespace encore::memory {

struct Here {
  uint64_t pool_scope = 0, meter = 0;
};
inline constinit thread_local Here here;

}  // namespace encore::memory
