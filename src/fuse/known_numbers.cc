// Numbers that models compute from their shapes, such as attention's scale, where these are known, or from constants of
// which onnxruntime's CPU cannot.
#include <algorithm>
#include <cmath>
#include <map>

#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr ops::Types kServed{Type::f16, Type::bf16, Type::f32};

class Numbers {
 public:
  explicit Numbers(const Match& match) : match_(match), symbols_(match) {}

  // What the step makes, if it is a single number that is known; as its type has it.
  std::optional<float> made_by(int s) {
    const Step& step = match_.step(s);
    if (!step.node || !step.is_operator() || step.make || step.outputs.size() != 1 || step.outputs[0] < 0)
      return std::nullopt;
    const Value& made = match_.value(step.outputs[0]);
    if (!kServed.has(made.type) || !made.dims || made.dims->size() > 1 ||
        (made.dims->size() == 1 && made.dims->front() != 1))
      return std::nullopt;
    const auto number = computed(step);
    if (!number || !std::isfinite(*number)) return std::nullopt;
    float rounded = *number;
    if (made.type == Type::f16) rounded = float(device::Half(*number));
    if (made.type == Type::bf16) rounded = float(device::BFloat16(*number));
    known_[step.outputs[0]] = rounded;
    return rounded;
  }

 private:
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
  std::map<int, float> made;  // by step
  for (int s = 0; s < match.size(); ++s)
    if (const auto number = numbers.made_by(s)) made.emplace(s, *number);
  for (const auto& [s, number] : made) {
    const int v = match.step(s).outputs[0];
    const auto is_known = [&](int reader) { return made.contains(reader); };
    if (match.value(v).is_output || std::ranges::all_of(match.readers(v), is_known)) continue;
    const Value& value = match.value(v);
    const int constant = match.add_constant(value.name, own_numbers(value.type, ops::Shape(*value.dims), {number}));
    match.substitute(v, constant);
  }
  for (auto at = made.rbegin(); at != made.rend(); ++at) drop_unread(match, at->first);
}

}  // namespace encore::fuse
