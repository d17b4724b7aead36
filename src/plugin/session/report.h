// What an application asks to have written down: graphs, memory, tuning, and what the device did.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "automatic/report.h"
#include "device/blas.h"
#include "device/memory.h"
#include "device/trace.h"
#include "graph/session_graphs.h"
#include "memory/arena.h"
#include "plugin/session/allocator.h"
#include "profile/recorder.h"

namespace encore::plugin {

// A JSON list of {"id", "state", "nodes", "held_bytes", "retained_bytes", "replays", "refusal"}.
std::string as_json(const std::vector<graph::Report>& reports);

// A JSON list of {"region", "nodes", "keys", "graphs", "scratch_bytes", "captures", "replays", "staged", "first_runs",
// "padded", "grown", "lengths": {dimension: [...]}, "changing": ["input[axis]", ...], "in_captures", "eager", "moved",
// "crowded", "refused", "refusal", "shapes": [{"inputs": {input: [...]}, "scratch_bytes", "graphs", "workspace_bytes",
// "graph_nodes"}, ...]}.
std::string as_json(const std::vector<automatic::RegionReport>& reports);

// Where a node is: on Encore or not, by itself or, if `part` names it, in a region or group.
struct PlacedNode {
  std::string node;
  bool is_on_encore = false;
  std::string part, why;
};
// By the node whose body it is in, "" for the model itself: a JSON list of {"node", "inside", "on_encore", "part":
// null if it is in none, "why"}.
std::string as_json(const std::map<std::string, std::vector<PlacedNode>>& by_graph);

struct MemoryReport {
  memory::Stats arena;
  std::vector<memory::Holder> holders;
  PinnedPool::Stats pinned;
  size_t staging_bytes = 0;
  automatic::HeldReport graphs;
  device::MemoryInfo device;
};
// {"arena": {..., "limit_bytes": null if there is no limit}, "holders": [{"name", "bytes", "blocks"}], "pinned": {...},
// "staging": {"held_bytes"}, "automatic_graphs": {"graphs", "workspace_bytes", "node_bytes", "limit_bytes"}, "device":
// {"free_bytes", "total_bytes"}}.
std::string as_json(const MemoryReport& report);

// [{"problem", "candidates", "chosen", "first_us", "chosen_us"}]
std::string as_json(const std::vector<device::TunedProduct>& tuned);

// In the order in which they began: [{"name", "op", "replay", "depth", "stream": counted from 0, "begin_us": since the
// first began, "us", "own_us": without the nodes inside}].
std::string as_json(const std::vector<profile::Span>& spans);
std::string to_the_nanosecond(double us);  // "12.345"

void write_report(const std::string& json, const std::string& path);

// A line {"stream", "what", "name", "label"} for each entry; the stream as its address, or 0.
std::string as_json_line(const device::TraceEntry& entry);
// "start", or the file that a trace begun earlier is written to.
void trace(const std::string& value);

}  // namespace encore::plugin
