// What a region becomes: operators in the order of their running, on values some of which have another layout.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "fuse/channels_last.h"
#include "fuse/graph.h"

namespace encore::fuse {

struct Plan;

struct Step {
  std::unique_ptr<Variant> node;     // null if there are parts
  std::vector<int> inputs, outputs;  // values; -1 where absent
  // What runs it, if no operator does that models may ask for; it reads no input on the host.
  std::function<std::unique_ptr<ops::Op>(const NodeInfo&)> make = {};
  bool on_host = false;              // in whose memory all of its inputs and outputs are
  std::shared_ptr<Plan> parts = {};  // instead of a node
};

// Value `inner` is the memory of `outer`, an input or an output of the plan, with the channels spoken of as last.
struct View {
  int inner, outer;
};

struct Plan {
  std::vector<Value> values;
  std::vector<Step> steps;
  std::vector<int> inputs, outputs;  // values, as the caller counts them
  std::vector<View> views;
  std::vector<std::shared_ptr<OwnTensor>> constants;  // behind values

  int add(Value value);
};

// The graph as a whole, from `inputs` to `outputs`; `turn` puts the channels of what is between them last.
Plan plan_of(const Graph& graph, std::vector<int> inputs, std::vector<int> outputs, bool turn);

// Convolutions with what follows each become one step: a sum with a tensor of the same shape, and an activation.
void join_convolutions(Plan& plan);

}  // namespace encore::fuse
