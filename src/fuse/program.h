// Several operators as one: a plan that can run.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fuse/branches.h"
#include "fuse/plan.h"
#include "ops/op.h"

namespace encore::fuse {

class Program final : public ops::Op {
 public:
  // What the plan refers to is to live until prepare() is done, which comes before any run.
  explicit Program(Plan plan);

  void prepare(ops::Prepack& loader) override;
  void run(ops::Context& context) const override;

 private:
  struct Action {
    std::unique_ptr<ops::Op> op;
    const char *name = "", *op_type = "";  // of its node
    bool is_timed = false;                 // in profiles; not what is on the host, or was compiled before
    bool has_bodies = false;
    std::string label;  // "Conv node 'conv1'"; empty of what was compiled before
    std::vector<int> inputs, outputs;
    std::vector<bool> host_inputs, host_outputs;
    std::vector<std::pair<int, int>> alias;  // (input, output) that may be the same memory
    std::vector<Type> types;                 // of the outputs
    std::vector<int> last_read;              // values that nobody needs afterwards
    int fault_number = 0;
  };
  // Where a value is.
  struct Place {
    int input = -1, host_input = -1, output = -1;  // of the program
    bool is_view = false;                          // with the channels last, of an input or output that has them first
    std::optional<Tensor> constant, host_constant;
  };
  class Running;
  class ActionContext;

  void want_what_is_read(Step& step) const;
  void add(Step& step);
  bool is_on_host(int value) const;
  void load(Action& action, size_t input, const Tensor& constant, bool is_shared, ops::Prepack& loader);
  void renumber();
  std::vector<ActionOrder> order() const;

  Plan plan_;                  // until prepare()
  std::vector<Place> places_;  // by value; those of constants are the last ones once it is prepared
  size_t made_ = 0;            // values that are none
  std::vector<Action> actions_;
  std::vector<Branches> branches_;
  size_t cleared_bytes_ = 0;  // that actions may want; none if it is one alone
  std::vector<std::vector<char>> host_constants_;
};

}  // namespace encore::fuse
