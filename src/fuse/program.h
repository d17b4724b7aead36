// Several operators as one: a plan that can run.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fuse/plan.h"
#include "ops/op.h"

namespace encore::fuse {

// Memory for constants.
class Loader : public ops::Prepack {
 public:
  virtual void let_go(void* kept) = 0;  // what keep() gave is needed no more
};

class Program final : public ops::Op {
 public:
  // What the plan refers to is to live until load() is done, which comes before any run.
  explicit Program(Plan plan);
  void load(Loader& loader);

  void run(ops::Context& context) const override;

 private:
  struct Action {
    std::unique_ptr<ops::Op> op;
    const char* name;   // of its node
    std::string label;  // "Conv node 'conv1'"
    std::vector<int> inputs, outputs, host_inputs;
    std::vector<Type> types;     // of the outputs
    std::vector<int> last_read;  // values that nobody needs afterwards
  };
  // Where a value is.
  struct Place {
    int input = -1, output = -1;  // of the program
    bool is_view = false;         // with the channels last, of an input or output that has them first
    std::optional<Tensor> constant;
  };
  class Running;
  class ActionContext;

  void load(Action& action, size_t input, const Tensor& constant, Loader& loader);

  Plan plan_;  // until load()
  std::vector<Place> places_;
  std::vector<Action> actions_;
  std::vector<std::vector<char>> host_constants_;
};

}  // namespace encore::fuse
