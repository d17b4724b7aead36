// What patterns of nodes are recognised by.
#pragma once
#include <optional>
#include <vector>

#include "fuse/graph.h"

namespace encore::fuse {

bool is_onnx(const NodeInfo& info, const char* op);

// A graph with who makes and who reads its values.
class Match {
 public:
  explicit Match(const Graph& graph) : graph(graph), producers(graph.producers()), consumers(graph.consumers()) {}

  const Node& node(int n) const { return graph.nodes[size_t(n)]; }
  const Value& value(int v) const { return graph.values[size_t(v)]; }
  // The node that makes the value and may be taken, or -1.
  int maker(int v) const;
  int maker(int v, const char* op) const;
  // The node that alone reads the value and may be taken, or -1.
  int only_reader(int v) const;
  int only_reader(int v, const char* op) const;
  std::optional<size_t> rank(int v) const;

  // The single number that an input is, if it is a constant one; with no more dimensions than `most`.
  std::optional<double> number(const Node& node, size_t input, size_t most) const;
  struct Scaled {
    int from;  // a value
    double factor;
  };
  // What the node multiplies by a number, or divides by one, if it does no more.
  std::optional<Scaled> scaled(const Node& node) const;

  const Graph& graph;
  const std::vector<int> producers;
  const std::vector<std::vector<int>> consumers;
};

}  // namespace encore::fuse
