// What is computed from constants alone is one. onnxruntime does that where its CPU has kernels, which are few for
// halves, and dequantizes no weights.
#include <algorithm>
#include <iterator>

#include "fuse/passes.h"
#include "fuse/shape_symbols.h"

namespace encore::fuse {
namespace {

constexpr size_t kSmall = size_t(2) << 20;
// What is larger than that may be so much larger than what it is made of, as floats are than four bits.
constexpr size_t kMostTimes = 8;
constexpr int64_t kMostGrowth = int64_t(256) << 20;  // of all constants of a plan

size_t bytes_of(const Value& value) {
  return Tensor{value.type, ops::Where::host, ops::Shape(*value.dims), nullptr}.bytes();
}

bool is_known_inside(const Value& value) { return value.dims && are_numbers(*value.dims) && !value.is_output; }

// Whether constants are all that the step reads, and what it makes is of a known size and wanted here alone.
bool may_be_folded(const Match& match, int s) {
  if (!match.is_there(s) || draws(match.node(s))) return false;
  const Step& step = match.step(s);
  const auto is_absent = [](int v) { return v < 0; };
  return !std::ranges::all_of(step.inputs, is_absent) &&
         std::ranges::all_of(step.inputs, [&](int v) { return v < 0 || match.value(v).constant; }) &&
         std::ranges::all_of(step.outputs, [&](int v) { return v < 0 || is_known_inside(match.value(v)); });
}

// By how much constants grow; nothing if that is too much for what the step does.
std::optional<int64_t> growth_by(const Match& match, int s) {
  const Step& step = match.step(s);
  size_t read = 0, made = 0, kept = 0;
  for (int v : step.inputs) {
    if (v < 0) continue;
    const size_t bytes = match.value(v).constant->bytes();
    read += bytes;
    if (match.readers(v).size() > 1) kept += bytes;
  }
  for (int v : step.outputs)
    if (v >= 0) made += bytes_of(match.value(v));
  const bool only_moves = only_shapes(match, s) || match.is(s, "Transpose");
  // How something is to be shaped others may read, too.
  const bool is_copy = only_moves && step.inputs[0] >= 0 && match.readers(step.inputs[0]).size() > 1;
  if (made > kSmall && (made / kMostTimes > read || is_copy)) return std::nullopt;
  return int64_t(made) - int64_t(read - kept);
}

// The step, which reads constants.
Plan alone(const Match& match, int s) {
  Plan plan;
  plan.settings = match.plan().settings;
  Step& step = plan.steps.emplace_back(match.step(s));
  for (auto* const values : {&step.inputs, &step.outputs})
    for (int& v : *values)
      if (v >= 0) v = plan.add(match.value(v));
  std::ranges::copy_if(step.outputs, std::back_inserter(plan.outputs), [](int v) { return v >= 0; });
  return plan;
}

}  // namespace

void fold_constants(Match& match) {
  int64_t grown = 0;
  for (int s = 0; s < match.size() && match.plan().compute; ++s) {
    if (!may_be_folded(match, s)) continue;
    std::vector<std::shared_ptr<OwnTensor>> made;
    try {
      const auto growth = growth_by(match, s);
      if (!growth || grown + *growth > kMostGrowth) continue;
      made = match.plan().compute(alone(match, s));
      grown += *growth;
    } catch (const Error&) {  // the run will say what is wrong
      continue;
    }
    auto constant = made.begin();
    for (int v : match.step(s).outputs)
      if (v >= 0) match.substitute(v, match.add_constant(match.value(v).name, std::move(*constant++)));
    match.remove(s);
  }
}

}  // namespace encore::fuse
