#include "fuse/softmax_masks.h"

#include <algorithm>
#include <map>

#include "fuse/match.h"

namespace encore::fuse {
namespace {

class Masking {
 public:
  Masking(Plan& plan, int mask, int64_t keys) : plan_(plan), mask_(mask), keys_(keys) {}

  // Is added to the mask that is added to the scores, if there is one: that has fewer elements.
  void mask(size_t softmax) {
    const int scores = plan_.steps[softmax].inputs[0];
    const auto makes = [&](const Step& step) { return std::ranges::find(step.outputs, scores) != step.outputs.end(); };
    size_t reader = softmax, input = 0;
    if (const auto maker = std::ranges::find_if(plan_.steps, makes);
        maker != plan_.steps.end() && maker->node && is_onnx(*maker->node, "Add"))
      for (size_t i = 0; i < 2; ++i)
        if (is_mask(maker->inputs[i], scores)) reader = size_t(maker - plan_.steps.begin()), input = i;
    const int before = plan_.steps[reader].inputs[input];
    const auto [sum, is_new] = sums_.try_emplace(before, -1);
    if (is_new) {
      sum->second = add_sum(before, plan_.steps[reader].node->name());
      ++reader;
    }
    plan_.steps[reader].inputs[input] = sum->second;
  }

 private:
  // Of the scores' keys, for several of their rows in common.
  bool is_mask(int v, int scores) const {
    const auto &dims = plan_.values[size_t(v)].dims, &all = plan_.values[size_t(scores)].dims;
    if (!dims || !all || dims->empty() || dims->size() > all->size()) return false;
    return dims->size() < all->size() || std::ranges::count(*dims, 1) > std::ranges::count(*all, 1);
  }

  // In front of all that read the value.
  int add_sum(int v, const std::string& name) {
    Value made = plan_.values[size_t(v)];
    made.is_constant = made.is_output = false;
    made.constant = nullptr;
    made.name += " and padding";
    if (made.dims) made.dims->back() = keys_;
    const int sum = plan_.add(std::move(made));
    const auto reads = [&](const Step& step) { return std::ranges::find(step.inputs, v) != step.inputs.end(); };
    const auto first = std::ranges::find_if(plan_.steps, reads);
    plan_.steps.insert(first, plan_.step({"", "Add", 14, {}}, name, {v, mask_}, {sum}));
    return sum;
  }

  Plan& plan_;
  const int mask_;
  const int64_t keys_;       // their dimension
  std::map<int, int> sums_;  // by what the mask was added to
};

}  // namespace

void add_softmax_masks(Plan& plan, const PaddedAxes& axes, const std::string& dim) {
  for (const auto& [type, nodes] : axes.masked) {
    const int64_t keys = find_dim(plan, dim).value();
    const int mask = plan.add({.name = "padding of " + dim, .type = type, .dims = std::vector{keys}});
    plan.inputs.push_back(mask);
    Masking masking(plan, mask, keys);
    for (int node : nodes) {
      const auto is_it = [&](const Step& step) { return step.origin == std::vector{node} && !step.parts; };
      const auto softmax = std::ranges::find_if(plan.steps, is_it);
      if (softmax == plan.steps.end())
        fail(Code::not_supported, "a softmax along '", dim, "' is among convolutions with their channels last");
      masking.mask(size_t(softmax - plan.steps.begin()));
    }
  }
}

}  // namespace encore::fuse
