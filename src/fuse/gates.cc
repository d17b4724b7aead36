#include "fuse/gates.h"

#include <algorithm>
#include <set>

#include "fuse/norms.h"
#include "ops/elementwise/gate.h"
#include "ops/quantize/matmul_nbits.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

// Version 7 is the first that broadcasts as today.
bool is_factor(const NodeInfo& info) {
  return info.op_type() == "Mul" && info.domain().empty() && info.since_version() >= 7;
}
bool is_sigmoid(const NodeInfo& info) { return info.op_type() == "Sigmoid" && info.domain().empty(); }
// x * sigmoid(x), and that times y, where they are operators.
bool is_unscaled(const NodeInfo& info, const char* op) {
  return info.op_type() == op && info.domain().empty() && info.get_float("alpha", 1.f) == 1.f;
}
bool is_swish(const NodeInfo& info) { return is_unscaled(info, "Swish"); }
bool is_swiglu(const NodeInfo& info) { return is_unscaled(info, "SwiGLU"); }

bool is_matmul(const NodeInfo& info) { return info.op_type() == "MatMul" && info.domain().empty(); }
// Of a product by constants how many columns it has, or zero: not known, or no such product.
int64_t columns_of(const NodeInfo& info) {
  if (is_quantized_product(info)) return info.get_int("N", 0);
  const auto dims = is_matmul(info) ? info.input_dims(1) : std::nullopt;
  return dims && dims->size() == 2 ? std::max<int64_t>((*dims)[1], 0) : 0;
}

class Search {
 public:
  explicit Search(const Graph& graph) : graph_(graph), producers_(graph.producers()), consumers_(graph.consumers()) {}

  std::vector<std::vector<int>> run() const {
    std::vector<std::vector<int>> gates;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      auto [nodes, x, y] = gate_from(int(n));
      if (nodes.empty()) continue;
      // x is read by the sigmoid and what multiplies by that, unless these are one.
      if (are_alike(x, is_sigmoid(*graph_.nodes[n].info) ? 2 : 1, y, 1)) {
        const std::vector<int> products{producers_[size_t(x)], producers_[size_t(y)]};
        nodes.insert(nodes.end(), products.begin(), products.end());
        const int norm = norm_before(graph_, producers_, consumers_, products);
        if (norm >= 0) nodes.push_back(norm);
        std::sort(nodes.begin(), nodes.end());
      }
      if (nodes.size() > 1) gates.push_back(std::move(nodes));
    }
    return gates;
  }

 private:
  struct Gate {
    std::vector<int> nodes;
    int x = -1, y = -1;
  };
  // What begins with this node, if anything does.
  Gate gate_from(int first) const {
    const Node& node = graph_.nodes[size_t(first)];
    if (!node.takable) return {};
    if (is_swiglu(*node.info)) return {{first}, node.inputs[0], node.inputs[1]};
    const int x = node.inputs.empty() ? -1 : node.inputs[0];
    std::vector<int> nodes{first};
    if (is_sigmoid(*node.info)) {
      const int silu = product_with(node.outputs[0]);
      if (silu < 0 || other_factor(silu, node.outputs[0]) != x) return {};
      nodes.push_back(silu);
    } else if (!is_swish(*node.info)) {
      return {};
    }
    const int silu_of_x = graph_.nodes[size_t(nodes.back())].outputs[0], gate = product_with(silu_of_x);
    if (gate < 0) return {};
    nodes.push_back(gate);
    return {nodes, x, other_factor(gate, silu_of_x)};
  }

  // The product that alone reads the value, by another one that is computed, too; or -1.
  int product_with(int value) const {
    const std::vector<int>& readers = consumers_[size_t(value)];
    if (graph_.values[size_t(value)].is_output || readers.size() != 1) return -1;
    const Node& reader = graph_.nodes[size_t(readers[0])];
    if (!reader.takable || !is_factor(*reader.info)) return -1;
    return graph_.values[size_t(other_factor(readers[0], value))].is_constant ? -1 : readers[0];
  }
  int other_factor(int product, int value) const {
    const std::vector<int>& inputs = graph_.nodes[size_t(product)].inputs;
    return inputs[0] == value ? inputs[1] : inputs[0];
  }

  // Whether both values, read so often, are products that can be one.
  bool are_alike(int x, size_t readings_of_x, int y, size_t readings_of_y) const {
    const int left = producers_[size_t(x)], right = producers_[size_t(y)];
    if (x == y || left < 0 || right < 0 || consumers_[size_t(x)].size() != readings_of_x ||
        consumers_[size_t(y)].size() != readings_of_y || graph_.values[size_t(x)].is_output ||
        graph_.values[size_t(y)].is_output)
      return false;
    const Node &a = graph_.nodes[size_t(left)], &b = graph_.nodes[size_t(right)];
    const int64_t columns = columns_of(*a.info);
    if (!a.takable || !b.takable || columns == 0 || columns % ops::kGateColumns != 0 ||
        columns_of(*b.info) != columns || a.info->op_type() != b.info->op_type() || a.inputs[0] != b.inputs[0] ||
        a.inputs.size() != b.inputs.size())
      return false;
    if (is_quantized_product(*a.info))
      for (const char* attribute : {"K", "bits", "block_size"})
        if (a.info->find_int(attribute) != b.info->find_int(attribute)) return false;
    for (size_t i = 1; i < a.inputs.size(); ++i)
      if (!are_alike_constants(a, b, i, columns)) return false;
    return true;
  }
  // Not indices nor a bias, which MatMulNBits has behind zero points.
  bool are_alike_constants(const Node& a, const Node& b, size_t i, int64_t columns) const {
    if (a.inputs[i] < 0 || b.inputs[i] < 0) return a.inputs[i] == b.inputs[i];
    const auto dims = a.info->input_dims(int(i));
    if (i > 3 || !dims || dims->empty() || b.info->input_dims(int(i)) != dims ||
        a.info->input_type(int(i)) != b.info->input_type(int(i)))
      return false;
    for (const int value : {a.inputs[i], b.inputs[i]})
      if (!graph_.values[size_t(value)].is_constant || consumers_[size_t(value)].size() != 1) return false;
    return is_matmul(*a.info) || (*dims)[0] % columns == 0;
  }

  const Graph& graph_;
  const std::vector<int> producers_;
  const std::vector<std::vector<int>> consumers_;
};

// Of both constants in turns `bytes` of each; dimension `widened` becomes twice as large.
std::shared_ptr<OwnTensor> alternating(const Tensor& x, const Tensor& y, size_t bytes, size_t widened) {
  auto made = std::make_shared<OwnTensor>();
  std::vector<int64_t> dims(x.shape.dims().begin(), x.shape.dims().end());
  dims[widened] *= 2;
  made->view = {x.type, ops::Where::host, ops::Shape(dims), nullptr};
  made->bytes.resize(made->view.bytes());
  char* to = made->bytes.data();
  for (size_t at = 0; at < x.bytes(); at += bytes)
    for (const Tensor* from : {&x, &y}) to = std::copy_n(static_cast<const char*>(from->data) + at, bytes, to);
  made->view.data = made->bytes.data();
  return made;
}

// The product of both steps, whose output is a value of its own.
Step join_products(Plan& plan, const Step& x, const Step& y) {
  const int64_t columns = columns_of(*x.node);
  const bool by_columns = is_matmul(*x.node);  // else columns are rows of the constants
  Step both{std::make_unique<Variant>(*x.node), {x.inputs[0]}, {}, nullptr};
  both.node->set_name(x.node->name() + " and " + y.node->name());
  if (!by_columns) both.node->set("N", 2 * columns);
  for (size_t i = 1; i < x.inputs.size(); ++i) {
    if (x.inputs[i] < 0) {
      both.inputs.push_back(-1);
      continue;
    }
    const Tensor &of_x = *plan.values[size_t(x.inputs[i])].constant, &of_y = *plan.values[size_t(y.inputs[i])].constant;
    const size_t of_column = by_columns ? device::size_bytes(of_x.type) : of_x.bytes() / size_t(columns);
    const auto& made =
        plan.constants.emplace_back(alternating(of_x, of_y, of_column * size_t(ops::kGateColumns), by_columns ? 1 : 0));
    Value value = plan.values[size_t(x.inputs[i])];
    value.dims.emplace(made->view.shape.dims().begin(), made->view.shape.dims().end());
    value.constant = &made->view;
    both.node->inputs()[i].dims = value.dims;
    both.node->inputs()[i].constant = value.constant;
    both.inputs.push_back(plan.add(std::move(value)));
  }
  both.outputs = {plan.add({.name = both.node->name(), .type = x.node->output_type(0)})};
  return both;
}

// A gate's steps: a sigmoid, what it multiplies, and the gate. The first may be part of the second (Swish), and both of
// the last (SwiGLU).
struct GateSteps {
  const Step *sigmoid = nullptr, *silu = nullptr;
  Step* last = nullptr;
  int x = -1, y = -1;
};
GateSteps gate_of(std::vector<Step>& steps) {
  const auto find = [&](auto is) {
    const auto found = std::find_if(steps.begin(), steps.end(), is);
    return found == steps.end() ? nullptr : &*found;
  };
  const auto reader_of = [&](const Step& step) {
    return find([&](const Step& reader) {
      return is_factor(*reader.node) && std::count(reader.inputs.begin(), reader.inputs.end(), step.outputs[0]);
    });
  };
  GateSteps gate;
  gate.last = find([](const Step& step) { return is_swiglu(*step.node); });
  if (gate.last) {
    gate.x = gate.last->inputs[0], gate.y = gate.last->inputs[1];
    return gate;
  }
  gate.silu = find([](const Step& step) { return is_swish(*step.node); });
  gate.sigmoid = gate.silu ? nullptr : find([](const Step& step) { return is_sigmoid(*step.node); });
  if (gate.sigmoid) gate.silu = reader_of(*gate.sigmoid);
  gate.last = gate.silu ? reader_of(*gate.silu) : nullptr;
  if (!gate.last) return {};
  gate.x = (gate.sigmoid ? gate.sigmoid : gate.silu)->inputs[0];
  gate.y = gate.last->inputs[gate.last->inputs[0] == gate.silu->outputs[0] ? 1 : 0];
  return gate;
}

}  // namespace

std::vector<std::vector<int>> find_gates(const Graph& graph) { return Search(graph).run(); }

void join_gate(Plan& plan) {
  const auto [sigmoid, silu, last, x, y] = gate_of(plan.steps);
  if (!last) return;
  const auto maker_of = [&](int value) {
    const auto found =
        std::find_if(plan.steps.begin(), plan.steps.end(), [&](const Step& step) { return step.outputs[0] == value; });
    return found == plan.steps.end() ? nullptr : &*found;
  };
  const Step *const left = maker_of(x), *const right = maker_of(y);
  const std::set<const Step*> joined{sigmoid, silu, last, left, right};
  std::vector<Step> steps;
  for (Step& step : plan.steps)
    if (!joined.contains(&step)) steps.push_back(std::move(step));
  std::vector<int> factors{x, y};
  if (left && right) factors = steps.emplace_back(join_products(plan, *left, *right)).outputs;
  if (factors.size() == 1 && is_quantized_product(*steps.back().node)) {
    steps.back().node->set(ops::kGated, 1);
    steps.back().outputs = last->outputs;
  } else {
    steps.push_back(
        {std::move(last->node), factors, last->outputs, factors.size() == 1 ? ops::make_gate_of_both : ops::make_gate});
  }
  plan.steps = std::move(steps);
}

}  // namespace encore::fuse
