// What libraries read of a mask is made once for all attention that it is added in.
#include <map>

#include "fuse/passes.h"
#include "fuse/viewed_attention.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr size_t kMask = 3;

void set_values(Match& match, int attention, std::vector<int> inputs, std::vector<int> outputs) {
  const Step& step = match.step(attention);
  Step made = match.plan().step({kFusions, "Attention", 1, step.node->attributes()}, step.node->name(),
                                std::move(inputs), std::move(outputs));
  made.make = step.make;
  match.replace({attention}, std::move(made));
}

}  // namespace

// In the order of their running: so none is waited for that waits itself.
void share_masks(Match& match) {
  std::map<int, std::vector<int>> by_mask;
  for (int s = 0; s < match.size(); ++s)
    if (is_viewed_attention(match.step(s)))
      if (const int mask = match.step(s).inputs[kMask]; mask >= 0 && ops::kHalves.has(match.value(mask).type))
        by_mask[mask].push_back(s);
  for (const auto& [mask, steps] : by_mask) {
    if (steps.size() < 2) continue;
    const int bias = match.add_like(mask, " as a bias", std::nullopt);
    Value rows{match.value(mask).name + "'s blind rows", Type::boolean};
    const int blind = match.add(std::move(rows));
    const Step& first = match.step(steps.front());
    set_values(match, steps.front(), first.inputs, {first.outputs[0], bias, blind});
    for (size_t i = 1; i < steps.size(); ++i) {
      std::vector<int> inputs = match.step(steps[i]).inputs;
      inputs.insert(inputs.end(), {bias, blind});
      set_values(match, steps[i], std::move(inputs), match.step(steps[i]).outputs);
    }
  }
}

}  // namespace encore::fuse
