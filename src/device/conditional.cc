#include "device/conditional.h"

#include "device/error.h"
#include "device/label.h"

namespace encore::device {

void check_in_body(NodeKind kind) {
  const char* const what = kind == NodeKind::allocate ? "allocating"
                           : kind == NodeKind::free   ? "freeing"
                           : kind == NodeKind::host   ? "calling the host"
                           : kind == NodeKind::event  ? "recording or waiting for an event"
                                                      : nullptr;
  if (!what) return;
  const std::string node = *Label::current() ? text(" (node ", Label::current(), ")") : "";
  fail(Code::capture_forbidden, what, " in a part of a graph that a condition decides", node,
       " is forbidden; the capture is now invalid");
}

}  // namespace encore::device
