#include "fuse/gelu.h"

#include <algorithm>
#include <cmath>

#include "fuse/match.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed = ops::kHalves | ops::Types{Type::f32};

// Whether a number of this type is meant to be that one.
bool is_about(std::optional<double> number, double wanted, Type type) {
  return number && std::abs(*number / wanted - 1) < (type == Type::f32 ? 1e-6 : 2e-3);
}

class Search : Match {
 public:
  using Match::Match;

  std::vector<std::vector<int>> run() const {
    std::vector<std::vector<int>> found;
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (is_onnx(*node(int(n)).info, "Erf"))
        if (std::vector<int> nodes = around(int(n)); !nodes.empty()) found.push_back(std::move(nodes));
    return found;
  }

 private:
  std::vector<int> around(int erf) const {
    const Type type = node(erf).info->input_type(0);
    const int root = node(erf).inputs[0], divided = maker(root);
    if (!node(erf).takable || !kServed.has(type) || divided < 0 || only_reader(root) < 0) return {};
    const auto by = scaled(node(divided));
    if (!by || !is_about(by->factor, std::sqrt(0.5), type)) return {};
    const int sum = only_reader(node(erf).outputs[0], "Add"), x = by->from;
    if (sum < 0 || (plus(sum, 0) != 1 && plus(sum, 1) != 1)) return {};
    std::vector<int> nodes{divided, erf, sum};
    // Times x and a half, in either order, or times a half of x.
    const int first = only_reader(node(sum).outputs[0], "Mul");
    if (first < 0) return {};
    const int factor = other(first, node(sum).outputs[0]);
    nodes.push_back(first);
    if (const int half = maker(factor, "Mul");
        factor != x && half >= 0 && halves(half, x) && only_reader(factor) >= 0) {
      nodes.push_back(half);
    } else {
      const int last = only_reader(node(first).outputs[0], "Mul");
      if (last < 0 || !(factor == x ? halves(last, node(first).outputs[0])
                                    : halves(first, node(sum).outputs[0]) && other(last, node(first).outputs[0]) == x))
        return {};
      nodes.push_back(last);
    }
    std::sort(nodes.begin(), nodes.end());
    return nodes;
  }
  std::optional<double> plus(int sum, size_t input) const {
    return number(node(sum), input, rank(node(sum).inputs[1 - input]).value_or(0));
  }
  int other(int product, int v) const {
    const auto& inputs = node(product).inputs;
    return inputs[inputs[0] == v ? 1 : 0];
  }
  bool halves(int product, int v) const {
    const auto by = scaled(node(product));
    return by && by->from == v && by->factor == 0.5;
  }
};

}  // namespace

std::vector<std::vector<int>> find_gelus(const Graph& graph) { return Search(graph).run(); }

void join_gelu(Plan& plan) {
  const auto erf =
      std::find_if(plan.steps.begin(), plan.steps.end(), [](const Step& step) { return is_onnx(*step.node, "Erf"); });
  const auto x = std::find_if(plan.inputs.begin(), plan.inputs.end(),
                              [&](int value) { return !plan.values[size_t(value)].is_constant; });
  if (plan.steps.size() != 5 || erf == plan.steps.end() || x == plan.inputs.end()) return;
  Step gelu{std::move(plan.steps.back().node), {*x}, plan.outputs};
  gelu.node->set_operator("", "Gelu", 20);
  gelu.node->inputs().resize(1);
  gelu.node->inputs()[0] = erf->node->inputs()[0];
  plan.steps.clear();
  plan.steps.push_back(std::move(gelu));
}

}  // namespace encore::fuse
