// What is known of shapes, and of tensors that hold them, before any runs: numbers, and dimensions of other tensors.
#pragma once
#include <optional>
#include <vector>

#include "fuse/graph.h"

namespace encore::fuse {

// A number, or a dimension that is not known: of which value, and which. Below -1 a number stands for a name.
struct Symbol {
  int64_t number = 0;
  int value = -1, axis = 0;
  bool operator==(const Symbol&) const = default;
};

class ShapeSymbols {
 public:
  explicit ShapeSymbols(const Graph& graph);

  // Of a value of known rank. Those of the same value and axis are the same.
  const std::optional<std::vector<Symbol>>& dims(int value) const { return dims_[size_t(value)]; }
  // What a tensor of integers holds; the nodes that compute it go to `nodes`.
  std::optional<std::vector<Symbol>> contents(int value, std::vector<int>& nodes) const {
    return contents(value, nodes, 0);
  }
  // The dimensions that a Reshape asks for: -1 is what is left. The nodes that compute them go to `nodes`.
  std::optional<std::vector<Symbol>> target(const Node& reshape, std::vector<int>& nodes) const;
  // The same if all are numbers that the model holds; a scalar is one.
  std::optional<std::vector<int64_t>> constants(const Node& node, size_t input) const;

 private:
  void find_dims(int value);
  // What the node makes of its inputs' dimensions; unknown ones are -1.
  std::optional<std::vector<Symbol>> made_by(const Node& node) const;
  std::optional<std::vector<Symbol>> broadcast(const Node& node) const;
  bool is_scalar(const Node& node, size_t input) const;
  std::optional<std::vector<Symbol>> product(const Node& node) const;
  std::optional<std::vector<Symbol>> target(const Node& reshape) const;
  std::optional<std::vector<Symbol>> reshaped(const Node& node) const;
  std::optional<std::vector<Symbol>> gathered(const Node& node) const;
  std::optional<std::vector<Symbol>> unsqueezed(const Node& node) const;
  std::optional<std::vector<Symbol>> contents(int value, std::vector<int>& nodes, int depth) const;
  std::optional<std::vector<Symbol>> computed(const Node& node, std::vector<int>& nodes, int depth) const;
  bool is_along_the_first(const Node& node) const;

  const Graph& graph_;
  const std::vector<int> producers_;
  std::vector<std::optional<std::vector<Symbol>>> dims_;  // by value
};

}  // namespace encore::fuse
