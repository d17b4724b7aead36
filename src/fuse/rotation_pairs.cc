// Rotations of queries and of keys as one step.
#include <algorithm>

#include "fuse/passes.h"
#include "fuse/viewed_rotation.h"
#include "ops/attention/rotary/viewed_rotation.h"

namespace encore::fuse {
namespace {

constexpr size_t kCos = 1, kSin = 2, kGamma = 3;

bool is_single(const Step& step) { return is_viewed_rotation(step) && step.outputs.size() == 1; }

// Heads of the same type and size, by the same cosines and sines, and the same way.
bool are_alike(const Match& match, const Step& a, const Step& b) {
  const Value &x = match.value(a.outputs[0]), &y = match.value(b.outputs[0]);
  const auto is_interleaved = [](const Step& step) { return step.node->get_int(ops::kInterleaved, 0); };
  return is_interleaved(a) == is_interleaved(b) && a.inputs[kCos] == b.inputs[kCos] &&
         a.inputs[kSin] == b.inputs[kSin] && x.type == y.type && x.dims && y.dims && x.dims->back() == y.dims->back();
}

}  // namespace

// No path leaves both and comes back, for neither waits for the other.
void join_rotation_pair(Match& match, int first) {
  if (!is_single(match.step(first))) return;
  int second = first + 1;
  while (second < match.size() &&
         !(is_single(match.step(second)) && are_alike(match, match.step(first), match.step(second))))
    ++second;
  if (second == match.size()) return;
  const Makers makers = match.makers();
  if (waits_for(makers, second, first) || waits_for(makers, first, second)) return;
  const NodeInfo &node = match.node(first), &other = match.node(second);
  Operator both = operator_of(node);
  for (auto& [name, value] : other.attributes()) both.attributes.emplace(ops::kOther + name, value);
  std::vector<int> inputs = match.step(first).inputs, more = match.step(second).inputs;
  inputs.resize(kGamma + 1, -1);
  inputs.push_back(more[0]);
  if (more.size() > kGamma) inputs.push_back(more[kGamma]);
  Step made = match.plan().step(std::move(both), node.name() + " and " + other.name(), std::move(inputs),
                                {match.step(first).outputs[0], match.step(second).outputs[0]});
  made.make = match.step(first).make;
  match.replace({first, second}, std::move(made));
}

}  // namespace encore::fuse
