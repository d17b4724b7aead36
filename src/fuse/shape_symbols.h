// What is known of tensors that hold shapes, before any runs: numbers, and dimensions of other tensors.
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
  ShapeSymbols(const Graph& graph, const std::vector<int>& producers) : graph_(graph), producers_(producers) {}

  // Of a value of known rank.
  std::optional<std::vector<Symbol>> dims(int value) const { return dims(value, 0); }
  // What a tensor of integers holds; the nodes that compute it go to `nodes`.
  std::optional<std::vector<Symbol>> contents(int value, std::vector<int>& nodes) const {
    return contents(value, nodes, 0);
  }
  // The same if all are numbers that the model holds; a scalar is one.
  std::optional<std::vector<int64_t>> constants(const Node& node, size_t input) const;

 private:
  std::optional<std::vector<Symbol>> dims(int value, int depth) const;
  std::optional<std::vector<Symbol>> contents(int value, std::vector<int>& nodes, int depth) const;
  std::optional<std::vector<Symbol>> computed(const Node& node, std::vector<int>& nodes, int depth) const;
  bool is_along_the_first(const Node& node) const;

  const Graph& graph_;
  const std::vector<int>& producers_;
};

}  // namespace encore::fuse
