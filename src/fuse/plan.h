// What nodes become: steps in the order of their running, on values. It is made of a graph, passes rewrite it
// (fuse/passes.h), and a Program runs it.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "fuse/channels_last.h"
#include "fuse/graph.h"

namespace encore::fuse {

// Who runs a step: an operator on the device, one on the host, in whose memory all that it reads and makes is, or
// nobody here.
enum class Runs { on_device, on_host, elsewhere };

struct Step {
  std::shared_ptr<const NodeInfo> node;
  std::vector<int> inputs, outputs;  // values; -1 where absent
  Runs runs = Runs::on_device;
  std::vector<int> origin = {};  // the graph's nodes that became it, in their order
  const char* what = nullptr;    // these are, if a pass has joined them
  bool comes_first = false;      // with what makes for it
  // What runs it, if no operator does that models may ask for; it reads no input on the host.
  std::function<std::unique_ptr<ops::Op>(const NodeInfo&)> make = {};
  // Instead of an operator: what has been compiled before, or the bodies of If, Loop or Scan (fuse/control_flow.h).
  std::shared_ptr<const ops::Op> compiled = {};
  std::vector<Body> bodies = {};

  bool is_operator() const { return !compiled && bodies.empty(); }
};

// Value `inner` is the memory of `outer`, an input or an output of the plan, with the channels spoken of as last.
struct View {
  int inner, outer;
};

Operator operator_of(const NodeInfo& node);
inline constexpr const char* kFusions = "encore";

struct Plan;
// Runs a plan of constants alone, on the device, and gives what goes out of it, in host memory. Throws Errors.
using Compute = std::function<std::vector<std::shared_ptr<OwnTensor>>(Plan plan)>;

struct Plan {
  std::vector<Value> values;
  std::vector<Step> steps;
  std::vector<int> inputs, outputs;  // values, as the caller counts them
  // Of bodies: values that come in host memory, counted behind the inputs, and how many of these, the last ones, are
  // from outside.
  std::vector<int> host_inputs;
  size_t outer_inputs = 0;
  // Of a Loop's: values that go on in host memory, which are there behind the iteration's number and the condition, and
  // are made behind the next condition.
  size_t host_carried = 0;
  bool by_data = false;  // a Loop's, of which only the device knows how often it runs
  int64_t beyond = 0;    // that one's, or a Scan's: a graph may have so many iterations one by one
  std::vector<View> views;
  std::vector<std::shared_ptr<OwnTensor>> constants;               // behind values
  std::shared_ptr<Symbols> symbols = std::make_shared<Symbols>();  // of the values' dimensions, and of others
  ops::Settings settings;
  Compute compute = {};  // null: nothing is computed before the first run
  // Of groups, around which other nodes are: shape arithmetic that those need, too, runs there, and what a step read of
  // it would have to be waited for.
  bool is_group = false;
  std::vector<std::string> notes;  // what passes have nearly joined, and why not

  int add(Value value);
  int add_constant(std::string name, std::shared_ptr<OwnTensor> constant);
  // One of the same type and dimensions, which a step is to make.
  int add_like(int v, const std::string& what);
  // What a constant input holds, if anybody knows.
  const Tensor* constant(const Step& step, size_t input) const;
  // A step of whose node is said what the plan knows of the values.
  Step step(Operator op, std::string name, std::vector<int> inputs, std::vector<int> outputs) const;
};

// Is shown a plan as it was claimed, and as it is after a pass that has changed it or noted something. May be none.
using Watch = std::function<void(const char* pass, const Plan& plan)>;
inline constexpr const char* kAsClaimed = "as_claimed";

// The graph as a whole, from `inputs` to `outputs`, a step for each node.
Plan plan_of(const Graph& graph, std::vector<int> inputs, std::vector<int> outputs);

}  // namespace encore::fuse
