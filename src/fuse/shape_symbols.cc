#include "fuse/shape_symbols.h"

#include <algorithm>

#include "fuse/match.h"
#include "ops/host_vector.h"

namespace encore::fuse {
namespace {

constexpr int kDeepest = 16;   // what computes a shape is no longer
constexpr int64_t kInt64 = 7;  // as Cast says it

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

std::optional<std::vector<Symbol>> ShapeSymbols::dims(int value, int depth) const {
  const auto& known = graph_.values[size_t(value)].dims;
  if (!known) return std::nullopt;
  std::vector<Symbol> made;
  for (size_t i = 0; i < known->size(); ++i)
    made.push_back((*known)[i] == -1 ? Symbol{-1, value, int(i)} : Symbol{(*known)[i]});
  const int from = producers_[size_t(value)];
  if (from < 0 || depth == kDeepest || !is_onnx(*graph_.nodes[size_t(from)].info, "Transpose")) return made;
  const Node& node = graph_.nodes[size_t(from)];
  const auto order = node.info->find_ints("perm");
  const auto before = dims(node.inputs[0], depth + 1);
  if (!order || !before || order->size() != before->size() || made.size() != before->size()) return made;
  for (size_t i = 0; i < made.size(); ++i) {
    const int64_t axis = (*order)[i];
    if (made[i].value >= 0 && axis >= 0 && size_t(axis) < before->size()) made[i] = (*before)[size_t(axis)];
  }
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
    if (const auto numbers = constants(node, input)) {
      std::vector<Symbol> made;
      for (int64_t number : *numbers) made.push_back({number});
      return made;
    }
    return contents(node.inputs[input], nodes, depth);
  };
  if (is_onnx(info, "Shape")) {
    auto all = dims(node.inputs[0]);
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
