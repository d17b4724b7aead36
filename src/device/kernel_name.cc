#include "device/launch.h"

namespace encore::device {

KernelName::operator std::string_view() const {
  const std::string_view function = function_;
  const size_t from = function.find("F = ") + 4;
  size_t to = function.find(';', from);
  if (to == std::string_view::npos) to = function.rfind(']');
  return function.substr(from, to - from);
}

}  // namespace encore::device
