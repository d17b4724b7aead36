// What has become of a region's runs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace encore::automatic {

// What the driver takes on the device for a node of a graph can't be asked. It is NVIDIA's own estimate, for a cache of
// executable graphs (cudax), and a rough one: arguments of a kernel may be as much as four kilobytes of it.
inline constexpr size_t kBytesOfNode = 10 << 10;

// What a set of shapes needs that has run.
struct ShapesReport {
  std::vector<std::pair<std::string, std::vector<int64_t>>> inputs;  // those that there are
  size_t scratch_bytes = 0;                                          // of any run
  size_t graphs = 0;
  size_t workspace_bytes = 0;  // of a graph: scratch, what it copies, and room for what is collected
  size_t graph_nodes = 0;      // of all graphs
};

// What all graphs of a session hold.
struct HeldReport {
  size_t graphs = 0, workspace_bytes = 0, node_bytes = 0, limit_bytes = 0;
};

struct RegionReport {
  std::string name;  // "MatMul node 'a' to Add node 'b'"
  size_t nodes = 0;
  size_t keys = 0, graphs = 0;                       // sets of shapes that are known; graphs that are kept
  size_t scratch_bytes = 0;                          // with those shapes that want most
  int64_t captures = 0, replays = 0, staged = 0;     // staged: tensors copied to where a graph has them, or from there
  int64_t first_runs = 0;                            // with shapes that were not known
  int64_t padded = 0;                                // runs with a dimension made longer (pad)
  int64_t grown = 0;                                 // runs with one made longer that grows
  std::map<std::string, std::set<int64_t>> lengths;  // by these dimensions: what they have had instead of their own
  std::set<std::string> changing;                    // "x[1]": dimensions of inputs that the sets of shapes differ in
  int64_t in_captures = 0;                           // the application's own
  // Other runs that were not replayed: large tensors were at new places, there was no room for another graph, or none
  // can be captured.
  int64_t moved = 0, crowded = 0, refused = 0;
  std::string refusal;               // the latest reason for one of these
  std::vector<ShapesReport> shapes;  // of `keys`, those of which it is known

  int64_t eager() const { return moved + crowded + refused; }
};

}  // namespace encore::automatic
