#include "fuse/program.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "device/clear_ahead.h"
#include "device/label.h"
#include "device/memory.h"
#include "fuse/branched_run.h"
#include "fuse/control_flow.h"
#include "ops/bound_alone.h"
#include "ops/host_arithmetic.h"
#include "ops/host_values.h"
#include "ops/inner_context.h"
#include "ops/registry.h"
#include "ops/room.h"
#include "ops/shape/strided.h"
#include "profile/timeline.h"

namespace encore::fuse {

using ops::Shape;
using ops::Where;

namespace {

const ops::OpRow& row_of(const NodeInfo& node, bool has_bodies) {
  const std::string& domain = node.op_type() == "FusedConv" ? ops::kMicrosoft : node.domain();
  const ops::OpRow* const row = ops::find_row(domain, node.op_type(), node.since_version());
  if (!row || !(row->make || has_bodies))
    fail(Code::internal, "there is no ", domain, " ", node.op_type(), " to be fused");
  return *row;
}

size_t whole_pieces(size_t bytes) { return (bytes + 255) / 256 * 256; }

Shape with_channels(const Shape& shape, std::span<const int64_t> order) {
  return Shape(permuted({shape.dims().begin(), shape.dims().end()}, order));
}

// What somebody else has prepared, and keeps as well.
class Prepared final : public ops::Op {
 public:
  explicit Prepared(std::shared_ptr<const ops::Op> op) : op_(std::move(op)) {}
  void run(ops::Context& context) const override { op_->run(context); }
  size_t cleared_bytes() const override { return op_->cleared_bytes(); }

 private:
  const std::shared_ptr<const ops::Op> op_;
};

}  // namespace

Program::Program(Plan plan) : plan_(std::move(plan)), places_(plan_.values.size()) {
  for (size_t i = 0; i < plan_.inputs.size(); ++i) places_[size_t(plan_.inputs[i])].input = int(i);
  for (size_t i = 0; i < plan_.host_inputs.size(); ++i)
    places_[size_t(plan_.host_inputs[i])].host_input = int(plan_.inputs.size() + i);
  for (size_t i = 0; i < plan_.outputs.size(); ++i) places_[size_t(plan_.outputs[i])].output = int(i);
  for (const View& view : plan_.views) {
    places_[size_t(view.inner)] = places_[size_t(view.outer)];
    places_[size_t(view.inner)].is_view = true;
  }
  const std::vector<int> host_inputs = plan_.host_inputs;
  for (Step& step : plan_.steps) {
    want_what_is_read(step);
    add(step);
  }
  size_t most = 0;
  for (const Action& action : actions_) {
    const size_t bytes = whole_pieces(action.op->cleared_bytes());
    most = std::max(most, bytes), cleared_bytes_ += bytes;
  }
  if (cleared_bytes_ == most) cleared_bytes_ = 0;
  std::vector<size_t> last(places_.size());
  for (size_t a = 0; a < actions_.size(); ++a)
    for (const auto* values : {&actions_[a].inputs, &actions_[a].outputs})
      for (int value : *values)
        if (value >= 0) last[size_t(value)] = a;
  const auto forget_in_time = [&](int value) {
    if (value >= 0 && places_[size_t(value)].output < 0) actions_[last[size_t(value)]].last_read.push_back(value);
  };
  for (const Action& action : actions_) std::ranges::for_each(action.outputs, forget_in_time);
  if (!actions_.empty()) std::ranges::for_each(host_inputs, forget_in_time);  // which may be put on the device
}

// Of what bodies make.
void Program::want_what_is_read(Step& step) const {
  const auto is_read = [&](int value) {
    return places_[size_t(value)].output >= 0 || std::ranges::any_of(plan_.steps, [&](const Step& reader) {
             return std::ranges::count(reader.inputs, value) > 0;
           });
  };
  if (step.bodies.empty()) return;
  for (int& output : step.outputs)
    if (output >= 0 && !is_read(output)) output = -1;
}

void Program::add(Step& step) {
  Action& action = actions_.emplace_back();
  action.inputs = step.inputs;
  action.outputs = step.outputs;
  const bool on_host = step.runs == Runs::on_host;
  action.host_inputs.resize(step.inputs.size(), on_host);
  action.host_outputs.resize(step.outputs.size(), on_host);
  if (step.compiled) {
    for (int value : step.outputs)
      action.types.push_back(value < 0 ? Type::undefined : plan_.values[size_t(value)].type);
    action.op = std::make_unique<Prepared>(step.compiled);
    return;
  }
  action.name = device::kept(step.node->name());
  action.op_type = device::kept(step.node->op_type());
  action.is_timed = !on_host;
  action.has_bodies = !step.bodies.empty();
  action.label = ops::label_of(*step.node);
  for (int i = 0; i < step.node->output_count(); ++i) action.types.push_back(step.node->output_type(i));
  const bool has_bodies = action.has_bodies;
  const ops::OpRow* const row = step.make || on_host ? nullptr : &row_of(*step.node, has_bodies);
  const auto mark = [](const std::vector<int>& slots, std::vector<bool>& marks) {
    for (int i : slots)
      if (size_t(i) < marks.size()) marks[size_t(i)] = true;
  };
  if (row) {
    mark(row->host_inputs, action.host_inputs);
    for (size_t i = 0; i < action.host_inputs.size(); ++i)
      if (action.host_inputs[i] && (has_bodies || ops::is_bound_alone(*step.node, int(i))))
        action.host_inputs[i] = is_on_host(step.inputs[i]);
    mark(row->host_outputs, action.host_outputs);
    action.alias = row->alias;
  }
  std::fill_n(action.host_inputs.rbegin(), host_captures(step), true);
  if (const size_t carried = host_carried(step)) {
    std::fill_n(action.host_inputs.begin() + 2, carried, true);
    std::fill_n(action.host_outputs.begin(), carried, true);
  }
  try {
    action.op = has_bodies ? make_control_flow(step)
                : row      ? row->make(*step.node)
                : on_host  ? ops::make_host_op(*step.node)
                           : step.make(*step.node);
  } catch (const Error& error) {
    throw Error(error.code(), text(action.label, ": ", error.what()));
  }
  if (!action.op) fail(Code::internal, "there is no ", action.label, " on the host");
}

// If it is made before the next action.
bool Program::is_on_host(int value) const {
  if (value < 0 || places_[size_t(value)].host_input >= 0 || plan_.values[size_t(value)].is_constant) return true;
  for (const Action& action : actions_)
    for (size_t i = 0; i < action.outputs.size(); ++i)
      if (action.outputs[i] == value) return action.host_outputs[i];
  return false;
}

// An action is offered its constant, as onnxruntime offers them to kernels. What it does not keep in a form of its own
// is put on the device as it is.
void Program::load(Action& action, size_t input, const Tensor& constant, bool is_shared, ops::Prepack& loader) {
  const int value = action.inputs[input];
  Place& place = places_[size_t(value)];
  if (action.host_inputs[input]) {
    if (place.host_constant) return;
    auto& bytes = host_constants_.emplace_back(constant.bytes());
    if (!bytes.empty()) std::memcpy(bytes.data(), constant.data, bytes.size());
    place.host_constant.emplace(constant).data = bytes.data();
    place.host_constant->where = Where::host;
    return;
  }
  if (!place.constant) {
    Tensor& kept = place.constant.emplace(constant);
    kept.where = Where::device;
    const bool is_models =
        std::ranges::none_of(plan_.constants, [&](const auto& own) { return &own->view == &constant; });
    kept.data = loader.keep_constant(constant, is_models);
  }
  if (!action.op->prepack(int(input), *place.constant, loader) || is_shared) return;
  if (place.constant->data) loader.let_go(place.constant->data);
  place.constant.reset();
  action.inputs[input] = -1;
}

void Program::prepare(ops::Prepack& loader) {
  std::vector<int> readings(places_.size());  // by value
  for (const Action& action : actions_)
    for (int value : action.inputs)
      if (value >= 0) ++readings[size_t(value)];
  for (Action& action : actions_) {
    const device::Label label(action.name);
    if (!action.label.empty()) action.fault_number = loader.fault_number(action.label);
    action.op->prepare(loader);
    for (size_t i = 0; i < action.inputs.size(); ++i) {
      const int value = action.inputs[i];
      if (value < 0) continue;
      if (const Tensor* const constant = plan_.values[size_t(value)].constant)
        load(action, i, *constant, readings[size_t(value)] > 1, loader);
    }
  }
  plan_ = {};
  renumber();
  branches_ = find_branches(order());
}

// What an action reads may lie where an output is to be: programs bind what they pass on in one buffer. What the host
// has made goes to the device with the first action that reads it there.
std::vector<ActionOrder> Program::order() const {
  std::vector<ActionOrder> all(actions_.size());
  std::vector<int> made_by(made_, -1), put_by(made_, -1), readers_of_inputs;
  for (size_t a = 0; a < actions_.size(); ++a) {
    const Action& action = actions_[a];
    ActionOrder& order = all[a];
    order.is_alone = action.has_bodies;
    bool reads_inputs = false;
    for (size_t i = 0; i < action.inputs.size(); ++i) {
      const int value = action.inputs[i];
      if (value < 0 || size_t(value) >= made_ || action.host_inputs[i]) continue;
      if (made_by[size_t(value)] >= 0)
        order.after.push_back(made_by[size_t(value)]);
      else if (places_[size_t(value)].input >= 0)
        reads_inputs = true;
      else if (const int before = std::exchange(put_by[size_t(value)], int(a)); before >= 0)
        order.after.push_back(before);
    }
    bool makes_on_device = false;
    for (size_t i = 0; i < action.outputs.size(); ++i) {
      const int value = action.outputs[i];
      if (value < 0) continue;
      const bool is_output = places_[size_t(value)].output >= 0;
      makes_on_device |= is_output || !action.host_outputs[i];
      if (!action.host_outputs[i])
        made_by[size_t(value)] = int(a);
      else
        order.is_alone |= is_output;  // which it delivers
      if (is_output) order.after.insert(order.after.end(), readers_of_inputs.begin(), readers_of_inputs.end());
    }
    order.is_on_host = !makes_on_device && !order.is_alone;
    if (reads_inputs) readers_of_inputs.push_back(int(a));
  }
  return all;
}

// Runs have room for what actions read and make, and not for all that was a value of the plan before passes rewrote it.
void Program::renumber() {
  std::vector<int> numbers(places_.size(), -1);
  std::vector<Place> places;
  const auto number = [&](bool constants) {
    for (Action& action : actions_)
      for (auto* const values : {&action.inputs, &action.outputs, &action.last_read})
        for (const int value : *values) {
          if (value < 0 || numbers[size_t(value)] >= 0) continue;
          Place& place = places_[size_t(value)];
          if ((place.constant || place.host_constant) != constants) continue;
          numbers[size_t(value)] = int(places.size());
          places.push_back(std::move(place));
        }
  };
  number(false);
  made_ = places.size();
  number(true);
  for (Action& action : actions_)
    for (auto* const values : {&action.inputs, &action.outputs, &action.last_read})
      for (int& value : *values)
        if (value >= 0) value = numbers[size_t(value)];
  places_ = std::move(places);
}

// What is there while the program runs.
class Program::Running {
 public:
  Running(const Program& program, ops::Context& outer)
      : program_(program),
        outer_(outer),
        branches_(program.branches_, outer),
        on_device_(program.made_),
        memory_(program.places_.size()) {
    if (program.cleared_bytes_ == 0) return;
    cleared_ = static_cast<char*>(outer.scratch(program.cleared_bytes_));
    clears_ = device::clear_ahead(outer.stream(), cleared_, program.cleared_bytes_);
  }

  ops::Context& outer() { return outer_; }
  BranchedRun& branches() { return branches_; }

  // A part of what is cleared ahead, if there is as much left.
  std::optional<ops::Context::Cleared> take_cleared(size_t bytes) {
    const size_t whole = whole_pieces(bytes);
    if (program_.cleared_bytes_ - cleared_taken_ < whole) return std::nullopt;
    char* const at = cleared_ + cleared_taken_;
    cleared_taken_ += whole;
    return ops::Context::Cleared{at, bool(clears_)};
  }
  void finish() {
    if (cleared_taken_ == 0) device::leave_out(outer_.stream(), clears_);
    if (cleared_) outer_.give_back(cleared_);
  }

  const Tensor* find(int value, Where where) { return where == Where::host ? on_host(value) : on_device(value); }

  // The memory may be that of the value `like`, if there is one.
  Tensor make(int value, Type type, const Shape& shape, Where where, int like) {
    const Place& place = program_.places_[size_t(value)];
    if (where == Where::host && on_host_.empty()) on_host_.resize(program_.made_);
    auto& slot = (where == Where::host ? on_host_ : on_device_)[size_t(value)];
    if (slot && slot->shape == shape) return *slot;  // whoever asks again gets the same
    if (where == Where::host) {
      slot = {type, where, shape, nullptr};
      slot->data = like >= 0 ? on_host(like)->data : take_on_host(slot->bytes());
    } else if (place.output >= 0) {
      slot = outer_.output(place.output,
                           place.is_view ? with_channels(shape, to_channels_first(size_t(shape.rank()))) : shape);
      slot->shape = shape;
    } else {
      slot = {type, where, shape, nullptr};
      slot->data = like >= 0 ? share(like, value) : take(value, slot->bytes());
    }
    return *slot;
  }

  ops::Room room(int value, const ops::Parts& parts) {
    const int output = program_.places_[size_t(value)].output;
    if (output < 0) fail(Code::internal, "what is as long as data says is read where nobody waits for that");
    return ops::room_in(outer_, output, parts);
  }

  // Outputs that are made on the host are wanted on the device.
  void deliver(const Action& action) {
    for (size_t i = 0; i < action.outputs.size(); ++i) {
      const int value = action.outputs[i];
      if (value < 0 || !action.host_outputs[i] || program_.places_[size_t(value)].output < 0) continue;
      const Tensor& made = *on_host_[size_t(value)];
      const Tensor to = outer_.output(program_.places_[size_t(value)].output, made.shape);
      if (to.where == Where::host) {
        if (made.bytes()) std::memcpy(to.data, made.data, made.bytes());
        continue;
      }
      if (made.bytes() == 0) continue;
      void* const at = outer_.scratch(ops::whole_words(made.bytes()));
      ops::store(outer_.stream(), made, at);
      ops::copy_bytes(outer_.stream(), at, to.data, int64_t(made.bytes()));
      outer_.give_back(at);
    }
  }

  // What runs later on the stream may overwrite it, unless another value lies there, too.
  void forget(int value) {
    const int owner = memory_[size_t(value)].owner;
    if (owner < 0 || --memory_[size_t(owner)].users > 0) return;
    if (void* const at = on_device_[size_t(owner)]->data) branches_.give_back(at);
  }

 private:
  // Of a value on the device.
  struct Memory {
    int owner = -1;  // the value for which it was taken; none if it is the caller's, or a constant's
    int users = 0;   // values that lie in what was taken for this one
  };

  const Tensor* made_on_host(int value) const {
    const auto* const slot = on_host_.empty() ? nullptr : &on_host_[size_t(value)];
    return slot && *slot ? &**slot : nullptr;
  }
  const Tensor* on_host(int value) {
    const Place& place = program_.places_[size_t(value)];
    if (place.host_constant) return &*place.host_constant;
    if (const Tensor* const made = made_on_host(value)) return made;
    if (place.host_input < 0) fail(Code::internal, "a value is read on the host and is not there");
    return outer_.find_input(place.host_input);
  }
  const Tensor* on_device(int value) {
    const Place& place = program_.places_[size_t(value)];
    if (place.constant) return &*place.constant;
    auto& slot = on_device_[size_t(value)];
    if (slot) {
      if (memory_[size_t(value)].owner >= 0) branches_.use(slot->data);
      return &*slot;
    }
    const Tensor* made = made_on_host(value);
    if (!made && place.input < 0 && place.host_input >= 0) made = on_host(value);
    if (made) {
      slot.emplace(made->type, Where::device, made->shape, take(value, ops::whole_words(made->bytes())));
      ops::store(outer_.stream(), *made, slot->data);
      return &*slot;
    }
    if (place.input < 0) fail(Code::internal, "a value is read before it is made");
    const Tensor* const input = outer_.find_input(place.input);
    if (!input) return nullptr;
    slot = *input;
    if (place.is_view) slot->shape = with_channels(input->shape, to_channels_last(size_t(input->shape.rank())));
    return &*slot;
  }

  void* take(int value, size_t bytes) {
    memory_[size_t(value)] = {value, 1};
    return branches_.scratch(bytes);
  }
  void* share(int like, int value) {
    const int owner = memory_[size_t(like)].owner;
    memory_[size_t(value)].owner = owner;
    if (owner >= 0) ++memory_[size_t(owner)].users;
    return on_device(like)->data;
  }
  void* take_on_host(size_t bytes) {
    constexpr size_t kMost = size_t(1) << 20;  // what is larger is no shape
    require(bytes <= kMost, "a tensor of ", bytes, " bytes is wanted on the host, where shapes are computed, and ",
            kMost, " are the most");
    return on_host_memory_.emplace_back(bytes).data();
  }

  const Program& program_;
  ops::Context& outer_;
  BranchedRun branches_;
  std::vector<std::optional<Tensor>> on_device_, on_host_;  // by value; the latter once there is one
  std::vector<Memory> memory_;
  std::vector<std::vector<char>> on_host_memory_;
  char* cleared_ = nullptr;
  device::ClearNode clears_;
  size_t cleared_taken_ = 0;
};

class Program::ActionContext final : public ops::InnerContext, public ops::HasRoom {
 public:
  ActionContext(Running& running, const Action& action)
      : InnerContext(running.outer()), running_(running), action_(action) {}
  ~ActionContext() override {
    for (void* block : scratch_) running_.branches().give_back(block);
  }

  int input_count() const override { return int(action_.inputs.size()); }
  int output_count() const override { return int(action_.outputs.size()); }
  const Tensor* find_input(int i) override {
    if (i < 0 || i >= input_count() || action_.inputs[size_t(i)] < 0) return nullptr;
    return running_.find(action_.inputs[size_t(i)], action_.host_inputs[size_t(i)] ? Where::host : Where::device);
  }
  Tensor output(int i, const Shape& shape) override {
    int in_place = -1;
    for (const auto& [from, to] : action_.alias)
      if (to == i && find_input(from)) in_place = from;
    return output_in_place(i, shape, in_place);
  }
  Tensor output_in_place(int i, const Shape& shape, int input) override {
    const int value = action_.outputs[size_t(i)];
    const Where where = action_.host_outputs[size_t(i)] ? Where::host : Where::device;
    if (value < 0) return {Type::undefined, where, shape, nullptr};
    return running_.make(value, action_.types[size_t(i)], shape, where, input < 0 ? -1 : action_.inputs[size_t(input)]);
  }
  ops::Room room(int i, const ops::Parts& parts) override { return running_.room(action_.outputs[size_t(i)], parts); }
  device::FaultRef fault() override {
    device::FaultRef fault = outer_.fault();
    if (action_.fault_number) fault.node = action_.fault_number;
    return fault;
  }
  bool wants_output(int i) const override { return i < output_count() && action_.outputs[size_t(i)] >= 0; }
  void* scratch(size_t bytes) override {
    return bytes ? scratch_.emplace_back(running_.branches().scratch(bytes)) : nullptr;
  }
  Cleared cleared_scratch(size_t bytes) override {
    const auto taken = running_.take_cleared(bytes);
    return taken ? *taken : Cleared{scratch(bytes), false};
  }
  void give_back(void* block) override {
    if (!block) return;
    scratch_.erase(std::next(std::find(scratch_.rbegin(), scratch_.rend(), block)).base());
    running_.branches().give_back(block);
  }

 private:
  Running& running_;
  const Action& action_;
  std::vector<void*> scratch_;
};

void Program::run(ops::Context& context) const {
  Running running(*this, context);
  profile::Steps steps;
  for (const Action& action : actions_) {
    const device::Label label(action.name);
    running.branches().begin(size_t(&action - actions_.data()));
    action.is_timed ? steps.next({action.name, action.op_type}) : steps.end();
    try {
      ActionContext within(running, action);
      action.op->run(within);
    } catch (const Error& error) {
      if (action.label.empty()) throw;
      throw Error(error.code(), text(action.label, ": ", error.what()));
    }
    running.deliver(action);
    for (int value : action.last_read) running.forget(value);
    running.branches().finish();
  }
  running.finish();
}

}  // namespace encore::fuse
