// A graph as fusion sees it: nodes and the values between them, by number.
#pragma once
#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fuse/convex.h"
#include "fuse/variant.h"

namespace encore::fuse {

// What stands for a dimension that is not known as a number: -2 for the first one, -3 for the next. Each has the name
// that the model gives it, or none, if it is one value's own.
class Symbols {
 public:
  int64_t add(std::string name) {
    names_.push_back(std::move(name));
    return -1 - int64_t(names_.size());
  }
  const std::string& name(int64_t symbol) const { return names_[size_t(-2 - symbol)]; }
  bool has_name(int64_t dim) const { return dim < -1 && !name(dim).empty(); }

  struct Multiple {
    int64_t symbol, count;
    auto operator<=>(const Multiple&) const = default;
  };
  // `count` times as much as a symbol, which is the same one whoever asks.
  int64_t times(int64_t symbol, int64_t count);
  // What a symbol is a multiple of: itself, if not of another one.
  Multiple parts(int64_t symbol) const {
    const auto found = parts_.find(symbol);
    return found == parts_.end() ? Multiple{symbol, 1} : found->second;
  }

 private:
  std::vector<std::string> names_;
  std::map<Multiple, int64_t> multiples_;
  std::map<int64_t, Multiple> parts_;  // of those
};

struct Value {
  std::string name;
  Type type = Type::undefined;
  // A dimension below -1 is a symbol (see Symbols); an unknown one is -1.
  std::optional<std::vector<int64_t>> dims;
  bool is_constant = false;
  const Tensor* constant = nullptr;  // in host memory, once a plan is made
  bool is_output = false;            // of the graph, or read by a graph inside a node
};

struct Plan;

// A graph inside of a node.
struct Body {
  std::string name;  // of the attribute that it is
  std::shared_ptr<Plan> plan;
};

// An operator of fusion's choice. Its domain is kFusions if no model has it.
struct Operator {
  std::string domain, name;
  int since_version = 1;
  ops::Attributes attributes = {};
};

struct Node {
  const NodeInfo* info;
  std::vector<int> inputs, outputs;   // values; -1 where absent
  bool takable = true;                // Encore has a kernel for it
  bool is_free = true;                // no other provider has taken it
  std::vector<int> read_inside = {};  // values that graphs inside of it read
  // Of a part of a plan: what it runs itself, reading what these want behind its own inputs, or what has been compiled
  // before.
  std::vector<Body> bodies = {};
  std::shared_ptr<const ops::Op> compiled = {};
  // What it is if `info` says so only of the node that it comes from: of this it is a part, or it has other ends.
  std::shared_ptr<const Operator> own = {};
};

struct Graph {
  std::vector<Node> nodes;  // in an order in which they can run
  std::vector<Value> values;
  std::shared_ptr<Symbols> symbols = std::make_shared<Symbols>();  // of the values' dimensions, and of others

  std::vector<int> producers() const;               // by value: a node, or -1
  std::vector<std::vector<int>> consumers() const;  // by value: nodes, one for each reading
  Makers makers() const;
};

}  // namespace encore::fuse
