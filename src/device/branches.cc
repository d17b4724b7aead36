#include "device/branches.h"

#include <algorithm>

namespace encore::device {

void CaptureEnd::add(const CaptureEnd& other) {
  for (const std::intptr_t node : other.nodes)
    if (std::ranges::find(nodes, node) == nodes.end()) nodes.push_back(node);
}

}  // namespace encore::device
