#include "fuse/shape_symbols.h"

#include <algorithm>
#include <string_view>

#include "fuse/match.h"
#include "ops/host_vector.h"

namespace encore::fuse {
namespace {

constexpr int kDeepest = 16;   // what computes a shape is no longer
constexpr int64_t kInt64 = 7;  // as Cast says it
constexpr Symbol kUnknown{-1};

// Operators whose first output has the dimensions of their first input.
constexpr std::string_view kSameShape[] = {"Abs",       "Cast",     "Clip",    "Dropout",
                                           "Elu",       "Erf",      "Exp",     "Gelu",
                                           "HardSwish", "Identity", "IsNaN",   "LayerNormalization",
                                           "LeakyRelu", "Neg",      "Not",     "RMSNormalization",
                                           "Relu",      "Sigmoid",  "Softmax", "Softplus",
                                           "Sqrt",      "Tanh"};
constexpr std::string_view kBroadcasting[] = {"Add", "And", "Div", "Equal", "Max",  "Min",
                                              "Mul", "Or",  "Pow", "Sub",   "Where"};

// Nothing if a number is none of a shape's: it would stand for a name.
std::optional<std::vector<Symbol>> as_symbols(const std::vector<int64_t>& numbers) {
  std::vector<Symbol> made;
  for (int64_t number : numbers) {
    if (number < -1) return std::nullopt;
    made.push_back({number});
  }
  return made;
}

size_t clamped(int64_t at, size_t size) {
  return size_t(std::clamp<int64_t>(at < 0 ? at + int64_t(size) : at, 0, int64_t(size)));
}

}  // namespace

std::optional<std::vector<int64_t>> ShapeSymbols::constants(const Node& node, size_t input) const {
  if (input >= node.inputs.size() || node.inputs[input] < 0 || !graph_.values[size_t(node.inputs[input])].is_constant)
    return std::nullopt;
  const Tensor* const constant = node.info->constant_input(int(input));
  if (!constant || constant->shape.rank() > 1 || (constant->type != Type::i64 && constant->type != Type::i32))
    return std::nullopt;
  return ops::host_ints(*constant, "a shape");
}

// A Slice of neighbours.
bool ShapeSymbols::is_along_the_first(const Node& node) const {
  const auto is = [&](size_t input, int64_t number) {
    return node.inputs.size() <= input || node.inputs[input] < 0 || constants(node, input) == std::vector{number};
  };
  return is(3, 0) && is(4, 1);
}

ShapeSymbols::ShapeSymbols(const Graph& graph)
    : graph_(graph), producers_(graph.producers()), dims_(graph.values.size()) {
  for (size_t value = 0; value < dims_.size(); ++value)
    if (producers_[value] < 0) find_dims(int(value));
  for (const Node& node : graph_.nodes)
    for (int value : node.outputs)
      if (value >= 0) find_dims(value);
}

void ShapeSymbols::find_dims(int value) {
  const auto& known = graph_.values[size_t(value)].dims;
  auto& made = dims_[size_t(value)];
  if (known) {
    made.emplace();
    for (int64_t dim : *known) made->push_back({dim});
  }
  const bool is_open = !made || std::ranges::any_of(*made, [](const Symbol& dim) { return dim.number < 0; });
  const int from = producers_[size_t(value)];
  // What is after a node's first output has other dimensions.
  if (is_open && from >= 0 && graph_.nodes[size_t(from)].outputs[0] == value)
    if (auto found = made_by(graph_.nodes[size_t(from)]); found && (!made || made->size() == found->size())) {
      if (!made) made.emplace(found->size(), kUnknown);
      // A name that is handed on says more than one of the value's own, of which tools invent many.
      for (size_t i = 0; i < made->size(); ++i)
        if (const Symbol dim = (*found)[i]; (*made)[i] == kUnknown || ((*made)[i].number < 0 && dim.value < 0))
          if (dim != kUnknown) (*made)[i] = dim;
    }
  for (size_t i = 0; made && i < made->size(); ++i)
    if ((*made)[i] == kUnknown) (*made)[i] = {-1, value, int(i)};
}

std::optional<std::vector<Symbol>> ShapeSymbols::made_by(const Node& node) const {
  const NodeInfo& info = *node.info;
  const auto is_one_of = [&](const auto& names) {
    return info.domain().empty() && std::ranges::find(names, std::string_view(info.op_type())) != std::end(names);
  };
  if (node.inputs.empty() || node.inputs[0] < 0) return std::nullopt;
  if (is_one_of(kSameShape)) return dims(node.inputs[0]);
  // Version 7 is the first that broadcasts as today.
  if (is_one_of(kBroadcasting) && info.since_version() >= 7) return broadcast(node);
  if (is_onnx(info, "MatMul")) return product(node);
  if (is_onnx(info, "Reshape")) return reshaped(node);
  if (is_onnx(info, "Gather")) return gathered(node);
  if (is_onnx(info, "Unsqueeze")) return unsqueezed(node);
  if (!is_onnx(info, "Transpose")) return std::nullopt;
  const auto& before = dims(node.inputs[0]);
  const auto order = info.find_ints("perm");
  if (!before || !order || order->size() != before->size()) return std::nullopt;
  std::vector<Symbol> made;
  for (int64_t axis : *order) {
    if (axis < 0 || size_t(axis) >= before->size()) return std::nullopt;
    made.push_back((*before)[size_t(axis)]);
  }
  return made;
}

std::optional<std::vector<Symbol>> ShapeSymbols::broadcast(const Node& node) const {
  std::vector<Symbol> made;
  for (size_t input = 0; input < node.inputs.size(); ++input) {
    const int value = node.inputs[input];
    if (value < 0 || (!dims(value) && !is_scalar(node, input))) return std::nullopt;
    std::vector<Symbol> other = dims(value).value_or(std::vector<Symbol>());
    if (made.size() < other.size()) std::swap(made, other);
    for (size_t i = 1; i <= other.size(); ++i) {
      Symbol &one = made[made.size() - i], two = other[other.size() - i];
      if (one == two || two == Symbol{1}) continue;
      // Of two different ones one has to be 1, so that a number above is what both become.
      if (one == Symbol{1} || two.number > 1)
        one = two;
      else if (one.number <= 1)
        one = kUnknown;
    }
  }
  return made;
}

// A scalar's dimensions are told as unknown ones.
bool ShapeSymbols::is_scalar(const Node& node, size_t input) const {
  if (!graph_.values[size_t(node.inputs[input])].is_constant) return false;
  const Tensor* const constant = node.info->constant_input(int(input));
  return constant && constant->shape.rank() == 0;
}

std::optional<std::vector<Symbol>> ShapeSymbols::product(const Node& node) const {
  const auto &a = dims(node.inputs[0]), &b = dims(node.inputs[1]);
  if (!a || !b || a->size() < 2 || b->size() < 2) return std::nullopt;
  if (b->size() == 2) {
    std::vector<Symbol> made = *a;
    made.back() = b->back();
    return made;
  }
  if (a->size() != b->size()) return std::nullopt;
  std::vector<Symbol> made = *a;
  for (size_t i = 0; i + 2 < made.size(); ++i)
    if (made[i] == Symbol{1})
      made[i] = (*b)[i];
    else if ((*b)[i] != made[i] && (*b)[i] != Symbol{1})
      made[i] = kUnknown;
  made.back() = b->back();
  return made;
}

std::optional<std::vector<Symbol>> ShapeSymbols::reshaped(const Node& node) const {
  const auto& before = dims(node.inputs[0]);
  auto made = target(node);
  if (!made || !before) return made;
  // What is left for one dimension, if all others are known in numbers, or are there before.
  const auto open = std::ranges::find(*made, kUnknown);
  if (open == made->end()) return made;
  int64_t all = 1, others = 1;
  std::vector<Symbol> unmatched;
  const auto is_number = [](const Symbol& symbol) { return symbol.number > 0; };
  for (const Symbol& symbol : *before)
    if (!is_number(symbol))
      unmatched.push_back(symbol);
    else if (__builtin_mul_overflow(all, symbol.number, &all))
      return made;
  for (const Symbol& symbol : *made) {
    if (symbol == kUnknown) continue;
    if (is_number(symbol)) {
      if (__builtin_mul_overflow(others, symbol.number, &others)) return made;
    } else if (const auto same = std::ranges::find(unmatched, symbol); same != unmatched.end()) {
      unmatched.erase(same);
    } else {
      return made;
    }
  }
  if (all % others == 0 && unmatched.empty())
    *open = {all / others};
  else if (all == others && unmatched.size() == 1)
    *open = unmatched[0];
  return made;
}

std::optional<std::vector<Symbol>> ShapeSymbols::target(const Node& reshape) const {
  std::vector<int> nodes;
  return target(reshape, nodes);
}
std::optional<std::vector<Symbol>> ShapeSymbols::target(const Node& reshape, std::vector<int>& nodes) const {
  const NodeInfo& info = *reshape.info;
  if (info.since_version() < 5) return std::nullopt;
  std::optional<std::vector<Symbol>> wanted;
  if (const auto numbers = constants(reshape, 1)) {
    wanted = as_symbols(*numbers);
  } else if (!graph_.values[size_t(reshape.inputs[1])].is_constant) {
    wanted = contents(reshape.inputs[1], nodes);
  }
  const auto& before = dims(reshape.inputs[0]);
  for (size_t i = 0; wanted && i < wanted->size(); ++i)
    if ((*wanted)[i] == Symbol{0}) {  // a dimension that stays
      if (info.get_int("allowzero", 0) != 0 || !before || i >= before->size()) return std::nullopt;
      (*wanted)[i] = (*before)[i];
    }
  return wanted;
}

std::optional<std::vector<Symbol>> ShapeSymbols::gathered(const Node& node) const {
  const auto &from = dims(node.inputs[0]), &places = dims(node.inputs[1]);
  if (!from || from->empty() || (!places && !is_scalar(node, 1))) return std::nullopt;
  int64_t axis = node.info->get_int("axis", 0);
  if (axis < 0) axis += int64_t(from->size());
  if (axis < 0 || axis >= int64_t(from->size())) return std::nullopt;
  std::vector<Symbol> made = *from;
  made.erase(made.begin() + axis);
  if (places) made.insert(made.begin() + axis, places->begin(), places->end());
  return made;
}

std::optional<std::vector<Symbol>> ShapeSymbols::unsqueezed(const Node& node) const {
  const auto& from = dims(node.inputs[0]);
  const auto axes = node.inputs.size() > 1 ? constants(node, 1) : node.info->find_ints("axes");
  if (!from || !axes) return std::nullopt;
  const int64_t rank = int64_t(from->size() + axes->size());
  std::vector<bool> is_new(static_cast<size_t>(rank));
  for (int64_t axis : *axes) {
    if (axis < -rank || axis >= rank || is_new[size_t(axis < 0 ? axis + rank : axis)]) return std::nullopt;
    is_new[size_t(axis < 0 ? axis + rank : axis)] = true;
  }
  std::vector<Symbol> made;
  for (size_t i = 0, next = 0; i < is_new.size(); ++i) made.push_back(is_new[i] ? Symbol{1} : (*from)[next++]);
  return made;
}

std::optional<std::vector<Symbol>> ShapeSymbols::contents(int value, std::vector<int>& nodes, int depth) const {
  const int from = producers_[size_t(value)];
  if (from < 0 || depth == kDeepest || !graph_.nodes[size_t(from)].is_free) return std::nullopt;
  nodes.push_back(from);
  return computed(graph_.nodes[size_t(from)], nodes, depth + 1);
}

std::optional<std::vector<Symbol>> ShapeSymbols::computed(const Node& node, std::vector<int>& nodes, int depth) const {
  const NodeInfo& info = *node.info;
  const auto of = [&](size_t input) -> std::optional<std::vector<Symbol>> {
    if (const auto numbers = constants(node, input)) return as_symbols(*numbers);
    return contents(node.inputs[input], nodes, depth);
  };
  if (is_onnx(info, "Shape")) {
    const auto& all = dims(node.inputs[0]);
    if (!all) return std::nullopt;
    const size_t first = clamped(info.get_int("start", 0), all->size());
    const size_t last = clamped(info.get_int("end", int64_t(all->size())), all->size());
    if (first >= last) return std::vector<Symbol>();
    return std::vector<Symbol>(all->begin() + ptrdiff_t(first), all->begin() + ptrdiff_t(last));
  }
  if (is_onnx(info, "Identity") || (is_onnx(info, "Cast") && info.get_int("to", 0) == kInt64)) return of(0);
  // All dimensions but the first are one, so that the first axis says all.
  if (is_onnx(info, "Squeeze") || is_onnx(info, "Unsqueeze")) {
    auto one = of(0);
    return one && one->size() == 1 ? one : std::nullopt;
  }
  if (is_onnx(info, "Mul")) {
    const auto a = of(0), b = of(1);
    if (!a || !b || a->size() != 1 || b->size() != 1) return std::nullopt;
    const Symbol one = (*a)[0], two = (*b)[0];
    if (one == Symbol{1}) return b;
    if (two == Symbol{1}) return a;
    int64_t made = 0;
    if (one.number < 1 || two.number < 1 || __builtin_mul_overflow(one.number, two.number, &made)) return std::nullopt;
    return std::vector{Symbol{made}};
  }
  if (is_onnx(info, "Concat") && info.get_int("axis", -1) == 0) {
    std::vector<Symbol> made;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const auto part = of(i);
      if (!part) return std::nullopt;
      made.insert(made.end(), part->begin(), part->end());
    }
    return made;
  }
  if (is_onnx(info, "Gather") && info.get_int("axis", 0) == 0) {
    const auto all = of(0);
    const auto places = constants(node, 1);
    if (!all || !places) return std::nullopt;
    std::vector<Symbol> made;
    for (int64_t at : *places) {
      if (at < 0) at += int64_t(all->size());
      if (at < 0 || at >= int64_t(all->size())) return std::nullopt;
      made.push_back((*all)[size_t(at)]);
    }
    return made;
  }
  if (is_onnx(info, "Slice") && node.inputs.size() > 2 && is_along_the_first(node)) {
    const auto all = of(0);
    const auto first = constants(node, 1), last = constants(node, 2);
    if (!all || !first || !last || first->size() != 1 || last->size() != 1) return std::nullopt;
    const size_t from = clamped((*first)[0], all->size()), to = clamped((*last)[0], all->size());
    if (from >= to) return std::vector<Symbol>();
    return std::vector<Symbol>(all->begin() + ptrdiff_t(from), all->begin() + ptrdiff_t(to));
  }
  return std::nullopt;
}

}  // namespace encore::fuse
