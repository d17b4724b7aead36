#include "fuse/program.h"

#include <algorithm>
#include <cstring>

#include "device/label.h"
#include "device/memory.h"
#include "ops/inner_context.h"
#include "ops/registry.h"

namespace encore::fuse {

using ops::Shape;
using ops::Where;

namespace {

const ops::OpRow& row_of(const Variant& node) {
  const std::string& domain = node.op_type() == "FusedConv" ? ops::kMicrosoft : node.domain();
  const ops::OpRow* const row = ops::find_row(domain, node.op_type(), node.since_version());
  if (!row || !row->make) fail(Code::internal, "there is no ", domain, " ", node.op_type(), " to be fused");
  return *row;
}

Shape with_channels(const Shape& shape, const std::array<int64_t, 4>& order) {
  return Shape(permuted({shape.dims().begin(), shape.dims().end()}, order));
}

}  // namespace

Program::Program(Plan plan) : plan_(std::move(plan)), places_(plan_.values.size()) {
  for (size_t i = 0; i < plan_.inputs.size(); ++i) places_[size_t(plan_.inputs[i])].input = int(i);
  for (size_t i = 0; i < plan_.outputs.size(); ++i) places_[size_t(plan_.outputs[i])].output = int(i);
  for (const View& view : plan_.views) {
    places_[size_t(view.inner)] = places_[size_t(view.outer)];
    places_[size_t(view.inner)].is_view = true;
  }
  for (const Step& step : plan_.steps) {
    const ops::OpRow* const row = step.make ? nullptr : &row_of(*step.node);
    Action& action = actions_.emplace_back();
    action.label = text(step.node->op_type(), " node '", step.node->name(), "'");
    try {
      action.op = row ? row->make(*step.node) : step.make(*step.node);
    } catch (const Error& error) {
      throw Error(error.code(), text(action.label, ": ", error.what()));
    }
    action.name = device::kept(step.node->name());
    action.inputs = step.inputs;
    action.outputs = step.outputs;
    if (row) action.host_inputs = row->host_inputs;
    for (int i = 0; i < step.node->output_count(); ++i) action.types.push_back(step.node->output_type(i));
  }
  std::vector<size_t> last(places_.size());
  for (size_t a = 0; a < actions_.size(); ++a)
    for (const auto* values : {&actions_[a].inputs, &actions_[a].outputs})
      for (int value : *values)
        if (value >= 0) last[size_t(value)] = a;
  for (const Action& action : actions_)
    for (int value : action.outputs)
      if (value >= 0 && places_[size_t(value)].output < 0) actions_[last[size_t(value)]].last_read.push_back(value);
}

// An action is offered its constant, as onnxruntime offers them to kernels. What it does not keep in a form of its own
// is put on the device as it is.
void Program::load(Action& action, size_t input, const Tensor& constant, Loader& loader) {
  const int value = action.inputs[input];
  Place& place = places_[size_t(value)];
  if (std::count(action.host_inputs.begin(), action.host_inputs.end(), int(input))) {
    auto& bytes = host_constants_.emplace_back(constant.bytes());
    if (!bytes.empty()) std::memcpy(bytes.data(), constant.data, bytes.size());
    place.constant.emplace(constant).data = bytes.data();
    return;
  }
  if (!place.constant) {
    Tensor& kept = place.constant.emplace(constant);
    kept.where = Where::device;
    kept.data = loader.keep(constant.bytes());
    if (constant.bytes()) device::copy(loader.stream(), kept.data, constant.data, constant.bytes());
  }
  int readers = 0;
  for (const Action& other : actions_) readers += int(std::count(other.inputs.begin(), other.inputs.end(), value));
  if (!action.op->prepack(int(input), *place.constant, loader) || readers > 1) return;
  if (place.constant->data) loader.let_go(place.constant->data);
  place.constant.reset();
  action.inputs[input] = -1;
}

void Program::load(Loader& loader) {
  for (Action& action : actions_) {
    const device::Label label(action.name);
    action.op->prepare(loader);
    for (size_t i = 0; i < action.inputs.size(); ++i)
      if (action.inputs[i] >= 0)
        if (const Tensor* const constant = plan_.values[size_t(action.inputs[i])].constant)
          load(action, i, *constant, loader);
  }
  plan_ = {};
}

// What is there while the program runs.
class Program::Running {
 public:
  Running(const Program& program, ops::Context& outer) : program_(program), outer_(outer) {
    tensors_.resize(program.places_.size());
  }

  ops::Context& outer() { return outer_; }

  const Tensor* find(int value) {
    auto& slot = tensors_[size_t(value)];
    if (slot) return &*slot;
    const Place& place = program_.places_[size_t(value)];
    if (place.constant) return &*place.constant;
    if (place.input < 0) fail(Code::internal, "a value is read before it is made");
    const Tensor* const input = outer_.find_input(place.input);
    if (!input) return nullptr;
    slot = *input;
    if (place.is_view) slot->shape = with_channels(input->shape, kToChannelsLast);
    return &*slot;
  }

  Tensor make(int value, Type type, const Shape& shape) {
    const Place& place = program_.places_[size_t(value)];
    Tensor made;
    if (place.output >= 0) {
      made = outer_.output(place.output, place.is_view ? with_channels(shape, kToChannelsFirst) : shape);
      made.shape = shape;
    } else {
      made = {type, Where::device, shape, nullptr};
      made.data = take(made.bytes());
    }
    tensors_[size_t(value)] = made;
    return made;
  }

  // A block that is free, if there is one of about the size.
  void* take(size_t bytes) {
    if (bytes == 0) return nullptr;
    Block* best = nullptr;
    for (Block& block : blocks_)
      if (block.is_free && block.bytes >= bytes && block.bytes / 2 <= bytes && (!best || block.bytes < best->bytes))
        best = &block;
    if (!best) best = &blocks_.emplace_back(Block{outer_.scratch(bytes), bytes});
    best->is_free = false;
    return best->at;
  }

  // What runs later on the stream may overwrite it.
  void give_back(void* at) {
    for (Block& block : blocks_)
      if (block.at == at) block.is_free = true;
  }
  void forget(int value) {
    if (auto& slot = tensors_[size_t(value)]; slot && slot->data) give_back(slot->data);
  }

 private:
  struct Block {
    void* at;
    size_t bytes;
    bool is_free = false;
  };
  const Program& program_;
  ops::Context& outer_;
  std::vector<std::optional<Tensor>> tensors_;  // by value
  std::vector<Block> blocks_;
};

class Program::ActionContext final : public ops::InnerContext {
 public:
  ActionContext(Running& running, const Action& action)
      : InnerContext(running.outer()), running_(running), action_(action) {}
  ~ActionContext() override {
    for (void* block : scratch_) running_.give_back(block);
  }

  int input_count() const override { return int(action_.inputs.size()); }
  int output_count() const override { return int(action_.outputs.size()); }
  const Tensor* find_input(int i) override {
    return i < 0 || i >= input_count() || action_.inputs[size_t(i)] < 0 ? nullptr
                                                                        : running_.find(action_.inputs[size_t(i)]);
  }
  Tensor output(int i, const Shape& shape) override {
    const int value = action_.outputs[size_t(i)];
    if (value < 0) return {Type::undefined, Where::device, shape, nullptr};
    return running_.make(value, action_.types[size_t(i)], shape);
  }
  bool wants_output(int i) const override { return i < output_count() && action_.outputs[size_t(i)] >= 0; }
  void* scratch(size_t bytes) override { return bytes ? scratch_.emplace_back(running_.take(bytes)) : nullptr; }

 private:
  Running& running_;
  const Action& action_;
  std::vector<void*> scratch_;
};

void Program::run(ops::Context& context) const {
  Running running(*this, context);
  for (const Action& action : actions_) {
    const device::Label label(action.name);
    try {
      ActionContext within(running, action);
      action.op->run(within);
    } catch (const Error& error) {
      throw Error(error.code(), text(action.label, ": ", error.what()));
    }
    for (int value : action.last_read) running.forget(value);
  }
}

}  // namespace encore::fuse
