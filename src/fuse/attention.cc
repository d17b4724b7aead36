#include "fuse/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "fuse/match.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

using ops::ViewStep;

constexpr int64_t kFloat = 1;  // as Cast says it
constexpr int64_t kLargestHead = 256;

// What makes a value of another by moving or scaling its elements.
struct Link {
  std::vector<int> nodes;
  std::vector<int> shapes;  // nodes that compute what it is given
  int from = -1;
  std::optional<ViewStep> view;
  double factor = 1;
};

class Search : Match {
 public:
  Search(const Graph& graph, const ShapeSymbols& symbols, bool only_own_shapes)
      : Match(graph), symbols_(symbols), only_own_shapes_(only_own_shapes) {}

  std::vector<Attention> run() const {
    std::vector<Attention> found;
    std::set<int> taken;  // what is behind one attention may be before the next
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      auto attention = around(int(n));
      if (!attention ||
          std::any_of(attention->nodes.begin(), attention->nodes.end(), [&](int node) { return taken.contains(node); }))
        continue;
      taken.insert(attention->nodes.begin(), attention->nodes.end());
      found.push_back(std::move(*attention));
    }
    return found;
  }

 private:
  // ---- what is before the products

  std::optional<Link> link_to(int v) const {
    const int made = maker(v);
    if (made < 0 || node(made).inputs.empty()) return std::nullopt;
    const Node& from = node(made);
    const NodeInfo& info = *from.info;
    if (const auto by = scaled(from)) return Link{{made}, {}, by->from, {}, by->factor};
    Link link{{made}, {}, from.inputs[0], {}, 1};
    if (is_onnx(info, "Transpose")) {
      auto order = info.find_ints("perm");
      if (!order) return std::nullopt;
      link.view = {ViewStep::transpose, std::move(*order)};
    } else if (is_onnx(info, "Reshape")) {
      if (auto swapped = swap_to(v)) return swapped;
      auto dims = symbols_.constants(from, 1);
      if (!dims) dims = kept(symbols_.target(from, link.shapes), symbols_.dims(link.from));
      if (!dims || (info.get_int("allowzero", 0) != 0 && std::count(dims->begin(), dims->end(), 0)))
        return std::nullopt;
      link.view = {ViewStep::reshape, std::move(*dims)};
    } else if (is_onnx(info, "Squeeze") || is_onnx(info, "Unsqueeze")) {
      auto axes = from.inputs.size() > 1 ? symbols_.constants(from, 1) : info.find_ints("axes");
      if (!axes) return std::nullopt;
      link.view = {is_onnx(info, "Squeeze") ? ViewStep::squeeze : ViewStep::unsqueeze, std::move(*axes)};
    } else if (is_onnx(info, "Gather")) {
      const auto index = symbols_.constants(from, 1);
      if (!index || info.constant_input(1)->shape.rank() != 0) return std::nullopt;
      link.view = {ViewStep::select, {info.get_int("axis", 0), (*index)[0]}};
    } else {
      return std::nullopt;
    }
    return link;
  }

  // A Reshape's numbers, where it asks for dimensions that are there before: zero says that one stays, -1 is one that
  // is left.
  static std::optional<std::vector<int64_t>> kept(const std::optional<std::vector<Symbol>>& wanted,
                                                  const std::optional<std::vector<Symbol>>& before) {
    if (!wanted || !before) return std::nullopt;
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < wanted->size(); ++i) {
      const Symbol& symbol = (*wanted)[i];
      numbers.push_back(symbol.number > 0 ? symbol.number : i < before->size() && symbol == (*before)[i] ? 0 : -1);
    }
    return std::count(numbers.begin(), numbers.end(), -1) > 1 ? std::nullopt : std::optional(std::move(numbers));
  }

  // torch's exporter turns keys so: a Reshape to three dimensions, a transposition of the last two, and one back to
  // four.
  std::optional<Link> swap_to(int v) const {
    const int back = maker(v, "Reshape"), turn = back < 0 ? -1 : maker(node(back).inputs[0], "Transpose");
    const int flat = turn < 0 ? -1 : maker(node(turn).inputs[0], "Reshape");
    if (flat < 0 || node(turn).info->find_ints("perm") != std::vector<int64_t>{0, 2, 1}) return std::nullopt;
    Link link{{flat, turn, back}, {}, node(flat).inputs[0], ViewStep{ViewStep::transpose, {0, 1, 3, 2}}, 1};
    const auto& from = symbols_.dims(link.from);
    const auto to_flat = symbols_.target(node(flat), link.shapes), to_back = symbols_.target(node(back), link.shapes);
    if (!from || !to_flat || !to_back || from->size() != 4 || to_flat->size() != 3 || to_back->size() != 4)
      return std::nullopt;
    const Symbol rest{-1};
    const auto &f = *from, &one = *to_flat, &two = *to_back;
    const bool swaps = one[1] == f[2] && one[2] == f[3] && (two[0] == f[0] || two[0] == rest) && two[1] == f[1] &&
                       two[2] == f[3] && two[3] == f[2];
    return swaps ? std::optional(std::move(link)) : std::nullopt;
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
    int mask = -1, v = -1;
    int product_y = -1;  // with values
    Link same;           // a Reshape of that to the shape it has, and what it computes it with; or none
  };

  // The product of which a value is a multiple; nodes go to the core.
  bool product_behind(int v, Core& core) const {
    for (int made = maker(v); made >= 0 && only_reader(v) >= 0; made = maker(v)) {
      core.nodes.push_back(made);
      if (is_onnx(*node(made).info, "MatMul")) {
        core.product = made;
        return true;
      }
      const auto by = scaled(node(made));
      if (!by) return false;
      core.scale *= by->factor;
      v = by->from;
    }
    return false;
  }

  std::optional<Core> before(int softmax, Type& type) const {
    Core core;
    core.nodes.push_back(softmax);
    int scores = node(softmax).inputs[0];
    if (const int cast = maker(scores, "Cast"); cast >= 0 && only_reader(scores) == softmax) {
      if (node(cast).info->get_int("to", 0) != kFloat) return std::nullopt;
      core.nodes.push_back(cast);
      scores = node(cast).inputs[0];
    }
    type = value(scores).type;
    Core plain = core;
    if (product_behind(scores, plain)) return plain;
    const int sum = maker(scores, "Add");
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
      const int cast = only_reader(p, "Cast");
      if (cast < 0) return false;
      core.nodes.push_back(cast);
      p = node(cast).outputs[0];
      if (value(p).type != type) return false;
    }
    if (const int filled = zeros_for_nan(p, core); filled >= 0) p = filled;
    const int product = only_reader(p, "MatMul");
    if (product < 0 || node(product).inputs[0] != p) return false;
    core.nodes.push_back(product);
    core.v = node(product).inputs[1];
    core.product_y = node(product).outputs[0];
    find_same(core);
    return true;
  }
  void find_same(Core& core) const {
    for (int reader : consumers[size_t(core.product_y)]) {
      if (value(core.product_y).is_output || !node(reader).takable || !is_onnx(*node(reader).info, "Reshape")) continue;
      Link link{{reader}, {}, core.product_y, {}, 1};
      const auto numbers = kept(symbols_.target(node(reader), link.shapes), symbols_.dims(core.product_y));
      const auto axes = rank(core.product_y);
      if (!numbers || numbers->size() != axes) continue;
      bool is_same = true;
      for (size_t i = 0; i < numbers->size(); ++i)
        is_same &= (*numbers)[i] <= 0 || Symbol{(*numbers)[i]} == (*symbols_.dims(core.product_y))[i];
      if (is_same) core.same = std::move(link);
    }
  }
  // Where(IsNaN(p), 0, p), or -1.
  int zeros_for_nan(int p, Core& core) const {
    const auto& readers = consumers[size_t(p)];
    if (value(p).is_output || readers.size() != 2) return -1;
    for (size_t i = 0; i < 2; ++i) {
      const int asks = readers[i], fills = readers[1 - i];
      const Node &test = node(asks), &where = node(fills);
      if (!test.takable || !where.takable || !is_onnx(*test.info, "IsNaN") || !is_onnx(*where.info, "Where") ||
          only_reader(test.outputs[0]) != fills || where.inputs[0] != test.outputs[0] || where.inputs[2] != p)
        continue;
      if (number(where, 1, 1) != 0) return -1;
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
    const auto axes = rank(at.inputs[0]);
    if (!axes || (*axes != 3 && *axes != 4) || !is_along_the_last(*at.info, *axes)) return std::nullopt;
    Type type = Type::undefined;
    auto core = before(softmax, type);
    if (!core || !ops::kHalves.has(type) || !complete(at.outputs[0], type, *core)) return std::nullopt;
    const int q = node(core->product).inputs[0], k = node(core->product).inputs[1];
    for (int v : {q, k, core->v, core->product_y})
      if (rank(v) != *axes || value(v).type != type) return std::nullopt;
    if (core->mask >= 0 && (value(core->mask).type != type || rank(core->mask).value_or(*axes + 1) > *axes))
      return std::nullopt;
    if (!has_good_size(q) || !has_good_size(core->v)) return std::nullopt;
    return joined(*core, {q, k, core->v}, {chain_to(q, true), chain_to(k, true), chain_to(core->v, false)}, *axes);
  }
  // Heads for which there are fast kernels.
  bool has_good_size(int v) const {
    const int64_t size = symbols_.dims(v)->back().number;
    return size > 0 && size <= kLargestHead && size % 8 == 0;
  }

  using Chains = std::array<std::vector<Link>, 3>;  // to queries, keys and values

  // Takes away what others read, too, and what the rest stands on then. The nodes that are left.
  std::set<int> settle(const Core& core, const std::array<int, 3>& starts, Chains& chains, Link& same) const {
    for (;;) {
      std::set<int> nodes(core.nodes.begin(), core.nodes.end()), shapes;
      const auto take = [&](const Link& link) {
        nodes.insert(link.nodes.begin(), link.nodes.end());
        shapes.insert(link.shapes.begin(), link.shapes.end());
      };
      take(same);
      for (const auto& chain : chains) std::ranges::for_each(chain, take);
      take_along(std::move(shapes), nodes);
      const auto is_inside = [&](int n) { return nodes.contains(n); };
      const auto has_shapes = [&](const Link& link) {
        return !only_own_shapes_ || std::ranges::all_of(link.shapes, is_inside);
      };
      // What is read has to be made outside, whoever else's way it is on.
      std::set<int> outside;
      for (size_t c = 0; c < 3; ++c) outside.insert(maker(chains[c].empty() ? starts[c] : chains[c].back().from));
      outside.insert(maker(core.mask));
      const auto stays = [&](const Link& link) {
        return has_shapes(link) && std::ranges::all_of(link.nodes, [&](int n) {
                 return is_read_only_by(nodes, n) && !outside.contains(n);
               });
      };
      // One at a time, as what one reads may be another's.
      bool is_settled = true;
      for (auto& chain : chains)
        if (const auto end = std::ranges::find_if_not(chain, stays); is_settled && end != chain.end()) {
          chain.erase(end, chain.end());
          is_settled = false;
        }
      // Nobody but the Reshape may ask for the product, or for its shape.
      if (is_settled && !same.nodes.empty() && !(has_shapes(same) && reads_only(nodes, core.product_y))) {
        same = {};
        is_settled = false;
      }
      if (is_settled) return nodes;
    }
  }

  std::optional<Attention> joined(const Core& core, const std::array<int, 3>& starts, Chains chains,
                                  size_t rank) const {
    Link same = core.same;
    std::set<int> nodes = settle(core, starts, chains, same);
    Attention made;
    made.how.scale = core.scale;
    std::vector<ViewStep>* const views[] = {&made.how.q, &made.how.k, &made.how.v};
    std::string* const names[] = {&made.q, &made.k, &made.v};
    for (size_t c = 0; c < 3; ++c) {
      *names[c] = value(starts[c]).name;
      for (const Link& link : chains[c]) {
        *names[c] = value(link.from).name;
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
    if (core.mask >= 0) made.mask = value(core.mask).name;
    for (size_t i = 0; i < rank; ++i) made.how.y_order.push_back(int64_t(i));
    const int y = same.nodes.empty() ? core.product_y : node(same.nodes[0]).outputs[0];
    made.y = value(take_turn(y, made.how.y_order, nodes)).name;
    made.nodes.assign(nodes.begin(), nodes.end());
    return made;
  }
  // Of what computes shapes, what nobody else reads.
  void take_along(std::set<int> shapes, std::set<int>& nodes) const {
    nodes.insert(shapes.begin(), shapes.end());
    for (bool changed = true; changed;) {
      changed = false;
      for (auto n = shapes.begin(); n != shapes.end();) {
        if (is_read_only_by(nodes, *n)) {
          ++n;
          continue;
        }
        nodes.erase(*n);
        n = shapes.erase(n);
        changed = true;
      }
    }
  }
  // The transposition behind, if it leaves the last dimension where it is; what is made then.
  int take_turn(int y, std::vector<int64_t>& order, std::set<int>& nodes) const {
    const int turn = only_reader(y, "Transpose");
    const auto asked = turn < 0 ? std::nullopt : node(turn).info->find_ints("perm");
    if (!asked || asked->size() != order.size() || asked->back() != order.back()) return y;
    nodes.insert(turn);
    order = *asked;
    return node(turn).outputs[0];
  }
  bool is_read_only_by(const std::set<int>& nodes, int n) const {
    return std::all_of(node(n).outputs.begin(), node(n).outputs.end(),
                       [&](int v) { return v < 0 || reads_only(nodes, v); });
  }
  bool reads_only(const std::set<int>& nodes, int v) const {
    return !value(v).is_output && std::all_of(consumers[size_t(v)].begin(), consumers[size_t(v)].end(),
                                              [&](int reader) { return nodes.contains(reader); });
  }

  const ShapeSymbols& symbols_;
  const bool only_own_shapes_;
};

}  // namespace

std::vector<Attention> find_attentions(const Graph& graph, const ShapeSymbols& symbols, bool only_own_shapes) {
  return Search(graph, symbols, only_own_shapes).run();
}

Plan plan_of(const Graph& graph, std::vector<int> inputs, std::vector<int> outputs, const Attention& attention) {
  Plan plan;
  plan.values = graph.values;
  plan.inputs = std::move(inputs);
  plan.outputs = std::move(outputs);
  const auto named = [&](const std::string& name) {
    const auto found = std::ranges::find(graph.values, name, &Value::name);
    return name.empty() || found == graph.values.end() ? -1 : int(found - graph.values.begin());
  };
  Step step;
  step.inputs = {named(attention.q), named(attention.k), named(attention.v), named(attention.mask)};
  step.outputs = {named(attention.y)};
  if (std::count(step.inputs.begin(), step.inputs.begin() + 3, -1) || step.outputs[0] < 0)
    fail(Code::internal, "the attention that makes '", attention.y, "' is another one");
  std::vector<Variant::Slot> slots;
  for (int v : step.inputs) slots.push_back({v >= 0, v >= 0 ? graph.values[size_t(v)].type : Type::undefined});
  step.node = std::make_unique<Variant>("Attention", graph.nodes.front().info->settings, std::move(slots),
                                        std::vector<Variant::Slot>{{true, graph.values[size_t(step.outputs[0])].type}});
  step.node->set_name(attention.y);
  step.make = [how = attention.how](const NodeInfo&) { return ops::make_viewed_attention(how); };
  plan.steps.push_back(std::move(step));
  return plan;
}

}  // namespace encore::fuse
