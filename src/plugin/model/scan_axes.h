// Along which dimensions a Scan goes.
#pragma once
#include <optional>
#include <vector>

#include "plugin/host/api_version.h"

namespace encore::plugin {

struct ScanAxis {
  size_t slot;                                // an input or an output of the node
  std::vector<int64_t> to_front, from_front;  // as Transpose has it: that dimension becomes the first one, and is again
};
// Of what does not go along the first one.
struct ScanAxes {
  std::vector<ScanAxis> inputs, outputs;
};
// None of other nodes. Nothing if the node names a dimension of which the model does not tell that it is there.
std::optional<ScanAxes> scan_axes(const OrtNode* node);

}  // namespace encore::plugin
