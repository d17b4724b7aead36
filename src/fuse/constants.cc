// What is computed from constants alone is one. onnxruntime does that where its CPU has kernels, which are few for
// halves.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "fuse/passes.h"
#include "fuse/variant.h"
#include "ops/host_arithmetic.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

constexpr int64_t kMostElements = int64_t(1) << 20;
// Whose results in floats, rounded, are those of halves' kernels, which compute in float, too.
constexpr std::string_view kFolded[] = {"Add",     "Sub",       "Mul",       "Div",     "Neg",    "Abs",    "Min",
                                        "Max",     "Equal",     "Less",      "Greater", "Where",  "Cast",   "Reshape",
                                        "Squeeze", "Unsqueeze", "Transpose", "Slice",   "Gather", "Concat", "Expand"};

// Functions of one value, which the host computes here alone.
struct Curve {
  std::string_view name;
  double (*of)(double);
};
constexpr Curve kCurves[] = {{"Cos", [](double x) { return std::cos(x); }},
                             {"Sin", [](double x) { return std::sin(x); }}};

// A run in host memory, of one output.
class HostRun final : public ops::Context {
 public:
  HostRun(std::vector<const Tensor*> inputs, Type type) : inputs_(std::move(inputs)), type_(type) {}
  int input_count() const override { return int(inputs_.size()); }
  int output_count() const override { return 1; }
  const Tensor* find_input(int i) override { return i < input_count() ? inputs_[size_t(i)] : nullptr; }
  Tensor output(int, const ops::Shape& shape) override {
    require(shape.count() <= kMostElements, shape.str(), " is more than is computed beforehand");
    made_ = own_numbers(type_, shape, {});
    return made_->view;
  }
  bool wants_output(int) const override { return true; }
  ops::StreamRef stream() const override { return {}; }
  void* scratch(size_t) override { refuse(); }
  device::Blas& blas() override { refuse(); }
  device::Dnn& dnn() override { refuse(); }
  device::FaultRef fault() override { return {}; }
  void read_back(void*, const void*, size_t) override { refuse(); }

  std::shared_ptr<OwnTensor> made() { return made_; }

 private:
  [[noreturn]] static void refuse() { fail(Code::internal, "what is computed beforehand has the host's memory alone"); }

  const std::vector<const Tensor*> inputs_;
  const Type type_;
  std::shared_ptr<OwnTensor> made_;
};

using Slots = std::vector<Variant::Slot>;

bool has_halves(const Slots& slots) {
  return std::ranges::any_of(slots, [](const auto& slot) { return ops::kHalves.has(slot.type); });
}
void widen(Slots& slots) {
  for (auto& slot : slots)
    if (ops::kHalves.has(slot.type)) slot.type = Type::f32;
}

const Curve* curve_of(const NodeInfo& info) {
  const auto found = std::ranges::find(kCurves, std::string_view(info.op_type()), &Curve::name);
  return info.domain().empty() && found != std::end(kCurves) ? found : nullptr;
}

// What the operator makes in floats, rounded; nothing if it has no way on the host.
std::shared_ptr<OwnTensor> computed(const Step& step, const std::vector<const Tensor*>& inputs, Type type) {
  if (const Curve* const curve = curve_of(*step.node)) {
    std::vector<double> numbers = numbers_of(*inputs[0]);
    std::ranges::transform(numbers, numbers.begin(), curve->of);
    return own_numbers(type, inputs[0]->shape, numbers);
  }
  Variant node(step.node);
  widen(node.inputs());
  widen(node.outputs());
  const std::unique_ptr<ops::Op> op = ops::make_host_op(node);
  if (!op) return nullptr;
  std::vector<std::shared_ptr<OwnTensor>> wide;
  std::vector<const Tensor*> read = inputs;
  for (const Tensor*& input : read)
    if (input && ops::kHalves.has(input->type))
      input = &wide.emplace_back(own_numbers(Type::f32, input->shape, numbers_of(*input)))->view;
  HostRun run(std::move(read), node.output_type(0));
  op->run(run);
  const auto made = run.made();
  return ops::kHalves.has(type) ? own_numbers(type, made->view.shape, numbers_of(made->view)) : made;
}

}  // namespace

void fold_constants(Match& match, int s) {
  const Step& step = match.step(s);
  if (!match.is_there(s)) return;
  if (!curve_of(*step.node) && std::ranges::find(kFolded, step.node->op_type()) == std::end(kFolded)) return;
  const Value& y = match.value(step.outputs[0]);
  Variant node(step.node);
  if (y.is_output || !(has_halves(node.inputs()) || has_halves(node.outputs()))) return;
  std::vector<const Tensor*> inputs;
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    inputs.push_back(match.plan().constant(step, i));
    if ((step.inputs[i] >= 0 && !inputs.back()) || (inputs.back() && inputs.back()->count() > kMostElements)) return;
  }
  std::shared_ptr<OwnTensor> made;
  try {
    made = computed(step, inputs, y.type);
  } catch (const Error&) {  // the run will say what is wrong
  }
  if (!made) return;
  const int v = step.outputs[0];
  match.substitute(v, match.add_constant(y.name, std::move(made)));
  match.remove(s);
}

}  // namespace encore::fuse
