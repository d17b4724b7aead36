// Which GPU the virtual one plays, as ENCORE_VIRTUAL_ARCH says (control.h).
#pragma once
#include <cstdint>

namespace encore::device::virtual_gpu {

struct Architecture {
  int capability;       // 900 is 9.0
  const char* product;  // a GPU of it, which has the rest
  int multiprocessors;
  int64_t shared_bytes, cache_bytes;
  bool has_clusters;
};
// Fails where ENCORE_VIRTUAL_ARCH names none.
const Architecture& architecture();

}  // namespace encore::device::virtual_gpu
