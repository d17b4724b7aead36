#include "device/gone.h"

#include <cstdio>

namespace encore::device {

void complain(const std::string& what, const std::exception& error) noexcept {
  if (!dynamic_cast<const Gone*>(&error)) std::fprintf(stderr, "encore: %s: %s\n", what.c_str(), error.what());
}

}  // namespace encore::device
