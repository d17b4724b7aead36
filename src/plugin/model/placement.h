// Which nodes are shape arithmetic and better left on the CPU. Knows neither onnxruntime nor devices.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace encore::plugin {

struct PlacementNode {
  std::string name;                             // as it stands in messages
  std::vector<int> inputs, outputs;             // numbers of values; -1 where absent
  std::vector<bool> host_inputs, host_outputs;  // slots that the kernel wants in host memory
  std::vector<int> read_inside = {};            // values that graphs inside of it read
  std::vector<int> host_reads = {};             // those that these read on the host, if it is a part of a node
  std::vector<int> fetched = {};                // values that are as long as data says, for no reader in its part
  bool has_bodies = false;                      // graphs are inside of it, and Encore can run them
  bool claimable = false;                       // there is a kernel for it
  bool shape_like = false;                      // its tensors have the types and sizes of shape arithmetic
  bool may_join = false;                        // Encore can run it as a part of a node
  bool is_host_op = false;                      // Encore can compute it on the host, as a part of a node
  bool is_small = false;                        // what it makes is known to be a few numbers
  // Has it read on the host less than these, as data on the device decides what its graphs do. False: it can't.
  std::function<bool(PlacementNode&, const std::vector<int>& lacking)> do_without = {};
  std::shared_ptr<const PlacementNode> outside = {};  // as it is in no part, if it does without something
  std::string why_outside = {};                       // it can't
};

struct PlacementGraph {
  std::vector<PlacementNode> nodes;   // in any order
  std::vector<bool> host_friendly;    // by value: costs nothing to have on the host (small constants and inputs)
  std::vector<bool> from_outside;     // by value: inputs, and what comes from graphs around
  std::vector<bool> from_around;      // by value: what comes from graphs around
  std::vector<bool> on_host;          // by value: in host memory before any node runs (a loop's iteration number)
  std::vector<bool> wanted_on_host;   // by value: whoever runs the graph reads it there (a loop's condition)
  std::vector<bool> large_constants;  // by value
  bool is_alone = true;               // the model has no graph but this one
  bool has_lone_parts = false;        // each node that can be one is a part
  // A node that is made of several has what is read inside of these; else only where one of them reads it, too.
  bool hands_on_read_inside = true;
};

// Of so many slots those that are listed.
std::vector<bool> flags(size_t count, const std::vector<int>& listed);

// The nodes that compute only with what is in host memory anyway (Shape's output, small constants), and whose results
// are wanted there. A node whose result is wanted on the device moves there if that saves the copy: Range and
// ConstantOfShape read host memory and write device memory.
std::vector<bool> shape_arithmetic(const PlacementGraph& graph);

// What nodes that are one compute on the host, passing to kernels what these want of it: since the results are wanted
// there, the device lacks them, or a few numbers are sooner passed than computed with.
struct HostPart {
  struct Lacking {
    int node;
    std::vector<int> values;  // none if the node itself can't run
  };
  std::vector<bool> nodes;
  std::vector<Lacking> lacking;  // what nodes read on the host and can't be had there; then the others are not told
};
// By node the one that it is a part of, which tells the host nothing but what it computes there; -1 for none.
HostPart host_part(const PlacementGraph& graph, const std::vector<int>& part_of);

// Of a loop's body a value that goes on: as it comes in, and as it goes out.
struct Carried {
  int value, next;
};
struct HostCarried {
  std::vector<bool> values;  // by carried one: the host hands it on
  std::vector<bool> nodes;   // make these, and what else is wanted on the host
};
// Which of them the host can hand on if it has what they begin with, and has to, for what is wanted there depends on
// them. What the host lacks is `from_outside`.
HostCarried carried_on_host(const PlacementGraph& graph, const std::vector<Carried>& carried);

// Has control flow decided by data on the device where the host surely lacks what decides: not where that comes from
// graphs around, which may have it there.
void let_data_decide(PlacementGraph& graph, const std::vector<bool>& on_cpu);

// For each of them onnxruntime looks at the whole model, and before 1.32 at all the others, too.
inline constexpr size_t kMostRegions = 256;
inline constexpr int kInSmallRegion = -2;  // of a node whose region is none, as there are so many larger ones
// The largest parts of the graph that can be one node each, which leaves on the device what it makes: by node a part's
// number, or one below zero. What is `on_cpu` without them stays if it is read on the host outside. Besides these,
// nodes with bodies are parts if data decides about them, and nodes that read large constants as others do: parts have
// these on the device once, and onnxruntime would have them besides. `lost` gets nodes that are in none since a part
// would not have what is read inside of them.
std::vector<int> regions(const PlacementGraph& given, const std::vector<bool>& on_cpu,
                         std::map<size_t, int>* lost = nullptr);
// What is read inside of the node, and would not be handed on to its part; -1 if there is nothing.
int lost_inside(const PlacementGraph& graph, size_t node, const std::vector<int>& part_of);
// The graph once parts are one each, as others see them.
PlacementGraph with_parts(PlacementGraph graph, const std::vector<int>& part_of);

// The values that onnxruntime will have to copy between host and device: "'producer' -> 'consumer'".
std::vector<std::string> crossings(const PlacementGraph& graph, const std::vector<bool>& on_cpu);

}  // namespace encore::plugin
