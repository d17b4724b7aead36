// Which nodes compute with few numbers, as shapes are, and may do so on the host.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "plugin/model/node_info.h"

namespace encore::plugin {

// Larger tensors are data, whatever their type. Unknown dimensions count for nothing.
bool is_small(const std::optional<std::vector<int64_t>>& dims);
// Whether what the node makes is known to be so.
bool makes_few(const GraphNodeInfo& info);
// Whether Encore can compute it on the host, as a part of a node.
bool is_host_op(const GraphNodeInfo& info);

}  // namespace encore::plugin
