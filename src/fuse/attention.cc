#include "fuse/attention.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "device/half.h"
#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

using ops::ViewStep;

constexpr int64_t kFloat = 1;  // as Cast says it
constexpr int64_t kLargestHead = 256;

bool is_onnx(const NodeInfo& info, const char* op) { return info.op_type() == op && info.domain().empty(); }

// A single number; of other types none.
double number_in(const Tensor& one) {
  switch (one.type) {
    case Type::f16: return float(*one.as<device::Half>());
    case Type::bf16: return float(*one.as<device::BFloat16>());
    case Type::f32: return *one.as<float>();
    default: return std::nan("");
  }
}

// What makes a value of another by moving or scaling its elements.
struct Link {
  std::vector<int> nodes;
  int from = -1;
  std::optional<ViewStep> view;
  double factor = 1;
};

class Search {
 public:
  explicit Search(const Graph& graph)
      : graph_(graph), producers_(graph.producers()), consumers_(graph.consumers()), symbols_(graph, producers_) {}

  std::vector<Attention> run() const {
    std::vector<Attention> found;
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (auto attention = around(int(n))) found.push_back(std::move(*attention));
    return found;
  }

 private:
  const Node& node(int n) const { return graph_.nodes[size_t(n)]; }
  const Value& value(int v) const { return graph_.values[size_t(v)]; }
  const Node* maker(int v) const {
    return v >= 0 && producers_[size_t(v)] >= 0 ? &node(producers_[size_t(v)]) : nullptr;
  }
  int maker_of(int v, const char* op) const {
    const Node* const from = maker(v);
    return from && from->takable && is_onnx(*from->info, op) ? producers_[size_t(v)] : -1;
  }
  // The node that alone reads the value, or -1.
  int only_reader(int v) const {
    const auto& readers = consumers_[size_t(v)];
    return !value(v).is_output && readers.size() == 1 && node(readers[0]).takable ? readers[0] : -1;
  }
  std::optional<size_t> rank_of(int v) const {
    return v >= 0 && value(v).dims ? std::optional(value(v).dims->size()) : std::nullopt;
  }

  // The number by which the node multiplies its input `from`, if it does no more.
  std::optional<double> factor_of(const Node& by, size_t& from) const {
    const bool divides = is_onnx(*by.info, "Div");
    if (!by.takable || (!divides && !is_onnx(*by.info, "Mul"))) return std::nullopt;
    for (size_t i = divides ? 1 : 0; i < 2; ++i) {
      if (!value(by.inputs[i]).is_constant) continue;
      from = 1 - i;
      const Tensor* const number = by.info->constant_input(int(i));
      const auto rank = rank_of(by.inputs[from]);
      if (!number || number->count() != 1 || !rank || size_t(number->shape.rank()) > *rank) return std::nullopt;
      const double factor = number_in(*number);
      return divides ? 1 / factor : factor;
    }
    return std::nullopt;
  }

  // ---- what is before the products

  std::optional<Link> link_to(int v) const {
    const Node* const from = maker(v);
    if (!from || !from->takable) return std::nullopt;
    const NodeInfo& info = *from->info;
    Link link{{producers_[size_t(v)]}, from->inputs.empty() ? -1 : from->inputs[0], {}, 1};
    size_t input = 0;
    if (const auto factor = factor_of(*from, input)) {
      link.from = from->inputs[input];
      link.factor = *factor;
      return link;
    }
    if (is_onnx(info, "Transpose")) {
      auto order = info.find_ints("perm");
      if (!order) return std::nullopt;
      link.view = {ViewStep::transpose, std::move(*order)};
    } else if (is_onnx(info, "Reshape")) {
      if (auto swapped = swap_to(v)) return swapped;
      auto dims = symbols_.constants(*from, 1);
      if (!dims || (info.get_int("allowzero", 0) != 0 && std::count(dims->begin(), dims->end(), 0)))
        return std::nullopt;
      link.view = {ViewStep::reshape, std::move(*dims)};
    } else if (is_onnx(info, "Squeeze") || is_onnx(info, "Unsqueeze")) {
      auto axes = from->inputs.size() > 1 ? symbols_.constants(*from, 1) : info.find_ints("axes");
      if (!axes) return std::nullopt;
      link.view = {is_onnx(info, "Squeeze") ? ViewStep::squeeze : ViewStep::unsqueeze, std::move(*axes)};
    } else if (is_onnx(info, "Gather")) {
      const auto index = symbols_.constants(*from, 1);
      if (!index || from->info->constant_input(1)->shape.rank() != 0) return std::nullopt;
      link.view = {ViewStep::select, {info.get_int("axis", 0), (*index)[0]}};
    } else {
      return std::nullopt;
    }
    return link;
  }

  // A Reshape to three dimensions, a transposition of the last two, and one back to four: torch's exporter turns keys
  // so.
  std::optional<Link> swap_to(int v) const {
    const int back = maker_of(v, "Reshape"), turn = back < 0 ? -1 : maker_of(node(back).inputs[0], "Transpose");
    const int flat = turn < 0 ? -1 : maker_of(node(turn).inputs[0], "Reshape");
    if (flat < 0 || node(turn).info->find_ints("perm") != std::vector<int64_t>{0, 2, 1}) return std::nullopt;
    Link link{{flat, turn, back}, node(flat).inputs[0], ViewStep{ViewStep::transpose, {0, 1, 3, 2}}, 1};
    const auto from = symbols_.dims(link.from);
    const auto to_flat = target(flat, link.nodes), to_back = target(back, link.nodes);
    if (!from || !to_flat || !to_back || from->size() != 4 || to_flat->size() != 3 || to_back->size() != 4)
      return std::nullopt;
    const Symbol rest{-1};
    const auto &f = *from, &one = *to_flat, &two = *to_back;
    const bool swaps = one[1] == f[2] && one[2] == f[3] && (two[0] == f[0] || two[0] == rest) && two[1] == f[1] &&
                       two[2] == f[3] && two[3] == f[2];
    return swaps ? std::optional(std::move(link)) : std::nullopt;
  }
  // The dimensions that a Reshape is asked for, and the nodes that compute them.
  std::optional<std::vector<Symbol>> target(int reshape, std::vector<int>& nodes) const {
    const Node& at = node(reshape);
    std::optional<std::vector<Symbol>> dims;
    if (const auto numbers = symbols_.constants(at, 1)) {
      dims.emplace();
      for (int64_t number : *numbers) dims->push_back({number});
    } else if (!value(at.inputs[1]).is_constant) {
      dims = symbols_.contents(at.inputs[1], nodes);
    }
    // Zero may say that a dimension stays.
    if (dims && std::count(dims->begin(), dims->end(), Symbol{0})) return std::nullopt;
    return dims;
  }

  // Links upwards from a value, the nearest first.
  std::vector<Link> chain_to(int v, bool with_factors) const {
    constexpr size_t kLongest = 16;
    std::vector<Link> chain;
    while (chain.size() < kLongest) {
      auto link = link_to(v);
      if (!link || link->from < 0 || (link->factor != 1 && !with_factors)) break;
      v = link->from;
      chain.push_back(std::move(*link));
    }
    return chain;
  }

  // ---- what is around a softmax

  struct Core {
    std::vector<int> nodes;
    int product = -1;  // of queries and keys
    double scale = 1;
    int mask = -1, y = -1, v = -1;
    std::vector<int64_t> y_order;
  };

  // The product of which a value is a multiple; nodes go to the core.
  bool product_behind(int v, Core& core) const {
    while (v >= 0 && only_reader(v) >= 0 && maker(v) && maker(v)->takable) {
      const Node& from = *maker(v);
      core.nodes.push_back(producers_[size_t(v)]);
      if (is_onnx(*from.info, "MatMul")) {
        core.product = producers_[size_t(v)];
        return true;
      }
      size_t input = 0;
      const auto factor = factor_of(from, input);
      if (!factor) return false;
      core.scale *= *factor;
      v = from.inputs[input];
    }
    return false;
  }

  std::optional<Core> before(int softmax, Type& type) const {
    Core core;
    core.nodes.push_back(softmax);
    int scores = node(softmax).inputs[0];
    if (const int cast = maker_of(scores, "Cast"); cast >= 0 && only_reader(scores) == softmax) {
      if (node(cast).info->get_int("to", 0) != kFloat) return std::nullopt;
      core.nodes.push_back(cast);
      scores = node(cast).inputs[0];
    }
    type = value(scores).type;
    Core plain = core;
    if (product_behind(scores, plain)) return plain;
    const int sum = maker_of(scores, "Add");
    if (sum < 0 || only_reader(scores) < 0) return std::nullopt;
    core.nodes.push_back(sum);
    for (size_t i = 0; i < 2; ++i) {
      Core masked = core;
      masked.mask = node(sum).inputs[1 - i];
      if (product_behind(node(sum).inputs[i], masked)) return masked;
    }
    return std::nullopt;
  }

  // From the probabilities to the product with values and its transposition.
  bool complete(int probabilities, Type type, Core& core) const {
    int p = probabilities;
    if (const int filled = zeros_for_nan(p, core); filled >= 0) p = filled;
    if (value(p).type != type) {
      const int cast = only_reader(p);
      if (cast < 0 || !is_onnx(*node(cast).info, "Cast")) return false;
      core.nodes.push_back(cast);
      p = node(cast).outputs[0];
      if (value(p).type != type) return false;
    }
    if (const int filled = zeros_for_nan(p, core); filled >= 0) p = filled;
    const int product = only_reader(p);
    if (product < 0 || !is_onnx(*node(product).info, "MatMul") || node(product).inputs[0] != p) return false;
    core.nodes.push_back(product);
    core.v = node(product).inputs[1];
    core.y = node(product).outputs[0];
    const auto rank = rank_of(core.y);
    if (!rank) return false;
    for (size_t i = 0; i < *rank; ++i) core.y_order.push_back(int64_t(i));
    const int turn = only_reader(core.y);
    if (turn < 0 || !is_onnx(*node(turn).info, "Transpose")) return true;
    const auto order = node(turn).info->find_ints("perm");
    if (!order || order->size() != *rank || order->back() != int64_t(*rank) - 1) return true;
    core.nodes.push_back(turn);
    core.y = node(turn).outputs[0];
    core.y_order = *order;
    return true;
  }
  // Where(IsNaN(p), 0, p), or -1.
  int zeros_for_nan(int p, Core& core) const {
    const auto& readers = consumers_[size_t(p)];
    if (value(p).is_output || readers.size() != 2) return -1;
    for (size_t i = 0; i < 2; ++i) {
      const int asks = readers[i], fills = readers[1 - i];
      const Node &test = node(asks), &where = node(fills);
      if (!test.takable || !where.takable || !is_onnx(*test.info, "IsNaN") || !is_onnx(*where.info, "Where") ||
          only_reader(test.outputs[0]) != fills || where.inputs[0] != test.outputs[0] || where.inputs[2] != p)
        continue;
      const Tensor* const zero = value(where.inputs[1]).is_constant ? where.info->constant_input(1) : nullptr;
      if (!zero || zero->count() != 1 || zero->shape.rank() > 1 || number_in(*zero) != 0) return -1;
      core.nodes.insert(core.nodes.end(), {asks, fills});
      return where.outputs[0];
    }
    return -1;
  }

  static bool is_along_the_last(const NodeInfo& info, size_t rank) {
    const int64_t axis = info.get_int("axis", info.since_version() < 13 ? 1 : -1);
    return axis == -1 || axis == int64_t(rank) - 1;
  }

  std::optional<Attention> around(int softmax) const {
    const Node& at = node(softmax);
    if (!at.takable || !is_onnx(*at.info, "Softmax")) return std::nullopt;
    const auto rank = rank_of(at.inputs[0]);
    if (!rank || (*rank != 3 && *rank != 4) || !is_along_the_last(*at.info, *rank)) return std::nullopt;
    Type type = Type::undefined;
    auto core = before(softmax, type);
    if (!core || !ops::kHalves.has(type) || !complete(at.outputs[0], type, *core)) return std::nullopt;
    const int q = node(core->product).inputs[0], k = node(core->product).inputs[1];
    for (int v : {q, k, core->v, core->y})
      if (rank_of(v) != *rank || value(v).type != type) return std::nullopt;
    if (core->mask >= 0 && (value(core->mask).type != type || rank_of(core->mask).value_or(*rank + 1) > *rank))
      return std::nullopt;
    if (!has_good_size(q) || !has_good_size(core->v)) return std::nullopt;
    return joined(*core, {chain_to(q, true), chain_to(k, true), chain_to(core->v, false)}, {q, k, core->v}, *rank);
  }
  // Heads for which there are fast kernels.
  bool has_good_size(int v) const {
    const int64_t size = value(v).dims->back();
    return size > 0 && size <= kLargestHead && size % 8 == 0;
  }

  // Of queries, keys and values what nobody else reads.
  std::optional<Attention> joined(const Core& core, std::vector<Link> (&&chains)[3], std::vector<int> starts,
                                  size_t rank) const {
    const std::set<int> inner(core.nodes.begin(), core.nodes.end());
    for (bool is_settled = false; !is_settled;) {
      is_settled = true;
      std::set<int> nodes = inner;
      for (const auto& chain : chains)
        for (const Link& link : chain) nodes.insert(link.nodes.begin(), link.nodes.end());
      for (auto& chain : chains)
        for (size_t i = 0; i < chain.size() && is_settled; ++i)
          if (!std::all_of(chain[i].nodes.begin(), chain[i].nodes.end(),
                           [&](int n) { return is_read_only_by(nodes, n); })) {
            chain.resize(i);
            is_settled = false;
          }
    }
    Attention made;
    std::set<int> nodes = inner;
    made.how.scale = core.scale;
    std::vector<ViewStep>* const views[] = {&made.how.q, &made.how.k, &made.how.v};
    int* const values[] = {&made.q, &made.k, &made.v};
    for (size_t c = 0; c < 3; ++c) {
      *values[c] = starts[c];
      for (const Link& link : chains[c]) {
        nodes.insert(link.nodes.begin(), link.nodes.end());
        *values[c] = link.from;
        made.how.scale *= link.factor;
        if (link.view) views[c]->insert(views[c]->begin(), *link.view);
      }
    }
    // The second factor of their product is [.., size, row].
    std::vector<int64_t> swap{0, 1, 2, 3};
    swap.resize(rank);
    std::swap(swap[rank - 1], swap[rank - 2]);
    made.how.k.push_back({ViewStep::transpose, swap});
    if (!(made.how.scale > 0) || !std::isfinite(made.how.scale)) return std::nullopt;
    made.mask = core.mask;
    made.y = core.y;
    made.how.y_order = core.y_order;
    made.nodes.assign(nodes.begin(), nodes.end());
    return made;
  }
  bool is_read_only_by(const std::set<int>& nodes, int n) const {
    return std::all_of(node(n).outputs.begin(), node(n).outputs.end(), [&](int v) {
      return v < 0 || (!value(v).is_output && std::all_of(consumers_[size_t(v)].begin(), consumers_[size_t(v)].end(),
                                                          [&](int reader) { return nodes.contains(reader); }));
    });
  }

  const Graph& graph_;
  const std::vector<int> producers_;
  const std::vector<std::vector<int>> consumers_;
  const ShapeSymbols symbols_;
};

}  // namespace

std::vector<Attention> find_attentions(const Graph& graph) { return Search(graph).run(); }

Plan plan_of(const Graph& graph, std::vector<int> inputs, std::vector<int> outputs, Attention attention) {
  Plan plan;
  plan.values = graph.values;
  plan.inputs = std::move(inputs);
  plan.outputs = std::move(outputs);
  Step step;
  step.inputs = {attention.q, attention.k, attention.v, attention.mask};
  step.outputs = {attention.y};
  const Value& y = graph.values[size_t(attention.y)];
  std::vector<Variant::Slot> slots;
  for (int v : step.inputs) slots.push_back({v >= 0, v >= 0 ? graph.values[size_t(v)].type : Type::undefined});
  step.node = std::make_unique<Variant>("Attention", graph.nodes.front().info->settings, std::move(slots),
                                        std::vector<Variant::Slot>{{true, y.type}});
  step.node->set_name(y.name);
  step.make = [how = std::move(attention.how)](const NodeInfo&) { return ops::make_viewed_attention(how); };
  plan.steps.push_back(std::move(step));
  return plan;
}

}  // namespace encore::fuse
