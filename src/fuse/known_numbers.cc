// Numbers that models compute from their shapes, such as attention's scale or where parts begin, where these are known,
// or from constants of which onnxruntime's CPU cannot.
#include <algorithm>
#include <cmath>
#include <map>

#include "fuse/links.h"
#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed{Type::f16, Type::bf16, Type::f32};

class Numbers {
 public:
  explicit Numbers(const Match& match) : match_(match), symbols_(match) {}

  // What the step makes, if it is a single number that is known, as its type has it, or a list of known integers; or
  // null.
  std::shared_ptr<OwnTensor> made_by(int s) {
    const Step& step = match_.step(s);
    if (!step.node || !step.is_operator() || step.make || step.outputs.size() != 1 || step.outputs[0] < 0) return {};
    const Value& made = match_.value(step.outputs[0]);
    if (!made.dims || made.dims->size() > 1) return {};
    const int64_t count = made.dims->empty() ? 1 : made.dims->front();
    if (made.type == Type::i64) return integers_of(step.outputs[0], count);
    if (!kServed.has(made.type) || count != 1) return {};
    const auto number = computed(step);
    if (!number || !std::isfinite(*number)) return {};
    float rounded = *number;
    if (made.type == Type::f16) rounded = float(device::Half(*number));
    if (made.type == Type::bf16) rounded = float(device::BFloat16(*number));
    known_[step.outputs[0]] = rounded;
    return own_numbers(made.type, ops::Shape(*made.dims), {rounded});
  }

 private:
  std::shared_ptr<OwnTensor> integers_of(int v, int64_t count) const {
    std::vector<int> steps;
    const auto held = symbols_.contents(v, steps);
    if (!held || std::ssize(*held) != count || !are_numbers(*held)) return {};
    return own(Type::i64, ops::Shape(*match_.value(v).dims), held->data());
  }
  std::optional<float> computed(const Step& step) const {
    const NodeInfo& info = *step.node;
    const auto is = [&](const char* op) { return is_onnx(info, op); };
    if (is("Cast")) {
      std::vector<int> steps;
      if (const auto known = known_.find(step.inputs[0]); known != known_.end()) return known->second;
      if (match_.value(step.inputs[0]).type != Type::i64 || match_.value(step.inputs[0]).is_constant)
        return std::nullopt;
      const auto held = symbols_.contents(step.inputs[0], steps);
      return held && held->size() == 1 && held->front() >= 0 ? std::optional(float(held->front())) : std::nullopt;
    }
    const auto a = operand(step, 0);
    if (!a) return std::nullopt;
    if (is("Sqrt")) return std::sqrt(*a);
    if (is("Reciprocal")) return 1 / *a;
    const auto b = step.inputs.size() == 2 ? operand(step, 1) : std::nullopt;
    if (!b) return std::nullopt;
    if (is("Mul")) return *a * *b;
    if (is("Div")) return *a / *b;
    if (is("Pow")) return std::pow(*a, *b);
    return std::nullopt;
  }
  std::optional<float> operand(const Step& step, size_t input) const {
    if (const auto known = known_.find(step.inputs[input]); known != known_.end()) return known->second;
    const auto number = match_.number(step, input, 1);
    return number ? std::optional(float(*number)) : std::nullopt;
  }

  const Match& match_;
  const ShapeSymbols symbols_;
  std::map<int, float> known_;  // by value
};

}  // namespace

// They are constants where others than such steps read them.
void know_numbers(Match& match) {
  Numbers numbers(match);
  std::map<int, std::shared_ptr<OwnTensor>> made;  // by step
  for (int s = 0; s < match.size(); ++s)
    if (auto known = numbers.made_by(s)) made.emplace(s, std::move(known));
  for (const auto& [s, known] : made) {
    const int v = match.step(s).outputs[0];
    const auto is_known = [&](int reader) { return made.contains(reader); };
    if (match.value(v).is_output || std::ranges::all_of(match.readers(v), is_known)) continue;
    match.substitute(v, match.add_constant(match.value(v).name, known));
  }
  for (auto at = made.rbegin(); at != made.rend(); ++at) drop_unread(match, at->first);
}

void know_target(Match& match, int reshape) {
  if (!match.is(reshape, "Reshape") || match.value(match.step(reshape).inputs[1]).is_constant) return;
  const Step& step = match.step(reshape);
  const ShapeSymbols symbols(match);
  const auto wanted = symbols.target(step);
  const auto numbers = Links::kept(wanted, match.value(step.inputs[0]).dims);
  if (!numbers || std::ranges::count(*wanted, 0)) return;
  // Beside one that stays, and may be zero, nothing tells how much is left.
  if (std::ranges::count(*numbers, 0) && std::ranges::count(*numbers, -1)) return;
  const int from = match.producer(step.inputs[1]);
  const int target = match.add_constant(match.value(step.inputs[1]).name, own_ints(*numbers));
  match.replace({reshape}, match.plan().step({ops::kOnnx, "Reshape", 13}, step.node->name(), {step.inputs[0], target},
                                             step.outputs));
  if (from >= 0) drop_unread(match, from);
}

}  // namespace encore::fuse
