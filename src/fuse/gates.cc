#include "fuse/gates.h"

#include "ops/elementwise/gate.h"

namespace encore::fuse {
namespace {

// Version 7 is the first that broadcasts as today.
bool is_product(const NodeInfo& info) {
  return info.op_type() == "Mul" && info.domain().empty() && info.since_version() >= 7;
}
bool is_sigmoid(const NodeInfo& info) { return info.op_type() == "Sigmoid" && info.domain().empty(); }

class Search {
 public:
  explicit Search(const Graph& graph) : graph_(graph), consumers_(graph.consumers()) {}

  std::vector<std::vector<int>> run() const {
    std::vector<std::vector<int>> gates;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& sigmoid = graph_.nodes[n];
      if (!sigmoid.takable || !is_sigmoid(*sigmoid.info)) continue;
      const int silu = product_with(sigmoid.outputs[0]);
      if (silu < 0 || other_factor(silu, sigmoid.outputs[0]) != sigmoid.inputs[0]) continue;
      const int gate = product_with(graph_.nodes[size_t(silu)].outputs[0]);
      if (gate >= 0) gates.push_back({int(n), silu, gate});
    }
    return gates;
  }

 private:
  // The product that alone reads the value, by another one that is computed, too; or -1.
  int product_with(int value) const {
    const std::vector<int>& readers = consumers_[size_t(value)];
    if (graph_.values[size_t(value)].is_output || readers.size() != 1) return -1;
    const Node& reader = graph_.nodes[size_t(readers[0])];
    if (!reader.takable || !is_product(*reader.info)) return -1;
    return graph_.values[size_t(other_factor(readers[0], value))].is_constant ? -1 : readers[0];
  }
  int other_factor(int product, int value) const {
    const std::vector<int>& inputs = graph_.nodes[size_t(product)].inputs;
    return inputs[0] == value ? inputs[1] : inputs[0];
  }

  const Graph& graph_;
  const std::vector<std::vector<int>> consumers_;
};

}  // namespace

std::vector<std::vector<int>> find_gates(const Graph& graph) { return Search(graph).run(); }

void join_gate(Plan& plan) {
  if (plan.steps.size() != 3 || !is_sigmoid(*plan.steps[0].node) || !is_product(*plan.steps[1].node) ||
      !is_product(*plan.steps[2].node))
    return;
  const int silu = plan.steps[1].outputs[0];
  Step gate = std::move(plan.steps[2]);
  gate.inputs = {plan.steps[0].inputs[0], gate.inputs[0] == silu ? gate.inputs[1] : gate.inputs[0]};
  gate.make = ops::make_gate;
  plan.steps.clear();
  plan.steps.push_back(std::move(gate));
}

}  // namespace encore::fuse
