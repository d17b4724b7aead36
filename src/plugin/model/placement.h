// Which nodes are shape arithmetic and better left on the CPU. Knows neither onnxruntime nor devices.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace encore::plugin {

struct PlacementNode {
  std::string name;                             // as it stands in messages
  std::vector<int> inputs, outputs;             // numbers of values; -1 where absent
  std::vector<bool> host_inputs, host_outputs;  // slots that the kernel wants in host memory
  bool claimable = false;                       // there is a kernel for it
  bool shape_like = false;                      // its tensors have the types and sizes of shape arithmetic
  bool is_host_op = false;                      // Encore can compute it on the host, if all nodes are one
  bool is_small = false;                        // what it makes is known to be a few numbers
};

struct PlacementGraph {
  std::vector<PlacementNode> nodes;  // in any order
  std::vector<bool> host_friendly;   // by value: costs nothing to have on the host (small constants and inputs)
  std::vector<bool> from_outside;    // by value: inputs of the model
  std::vector<bool> on_host;         // by value: in host memory before any node runs (a loop's iteration number)
};

// The nodes that compute only with what is in host memory anyway (Shape's output, small constants), and whose results
// are wanted there. A node whose result is wanted on the device moves there if that saves the copy: Range and
// ConstantOfShape read host memory and write device memory.
std::vector<bool> shape_arithmetic(const PlacementGraph& graph);

// If all nodes were one, which passes to kernels what they want of the host's: the nodes that it computes on the host,
// since their results are wanted there, the device lacks them, or a few numbers are sooner passed than computed with.
// Nothing if it can't do that.
std::optional<std::vector<bool>> host_part(const PlacementGraph& graph);

// The values that onnxruntime will have to copy between host and device: "'producer' -> 'consumer'".
std::vector<std::string> crossings(const PlacementGraph& graph, const std::vector<bool>& on_cpu);

}  // namespace encore::plugin
