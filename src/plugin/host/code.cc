#include "plugin/host/code.h"

#include <cstdint>
#include <fstream>
#include <string>

namespace encore::plugin {

bool is_code(const void* address) {
  std::ifstream maps("/proc/self/maps");
  if (!maps) return true;
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  uintptr_t begin = 0, end = 0;
  char dash = 0;
  std::string allowed, rest;  // "r-xp"
  while (maps >> std::hex >> begin >> dash >> end >> allowed && std::getline(maps, rest))
    if (begin <= wanted && wanted < end) return allowed.find('x') != allowed.npos;
  return false;
}

}  // namespace encore::plugin
