#include "fuse/loop.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "fuse/iterations.h"
#include "ops/host_values.h"

namespace encore::fuse {
namespace {

// In host memory.
struct HostValue {
  HostValue() = default;
  explicit HostValue(const Tensor& from) { std::memcpy(make(from.type, from.shape).data, from.data, from.bytes()); }
  HostValue(HostValue&&) = default;
  HostValue& operator=(HostValue&&) = default;
  Tensor make(Type type, const Shape& shape) {
    tensor = {type, Where::host, shape, nullptr};
    memory.resize(std::max<size_t>(tensor.bytes(), 1));
    tensor.data = memory.data();
    return tensor;
  }
  std::vector<char> memory;
  Tensor tensor{};
};

// What the host has of an iteration, and makes for the next one.
class HostPart {
 public:
  HostPart(std::vector<HostValue> carried, const std::vector<Type>& types, const Shape& number, const Shape& condition,
           bool goes_on)
      : values_(std::move(carried)),
        made_(values_.size()),
        types_(types),
        goes_on_(goes_on),
        next_condition_(condition),
        number_tensor_{Type::i64, Where::host, number, &number_} {}
  HostPart(const HostPart&) = delete;

  bool goes_on() const { return goes_on_; }
  const std::vector<HostValue>& values() const { return values_; }
  int count() const { return 2 + int(values_.size()); }  // of inputs
  void begin(int64_t i) {
    number_ = i;
    condition_ = goes_on_;
    condition_tensor_.shape = next_condition_;
  }
  void end() { std::swap(values_, made_); }

  const Tensor* find(int i) const {
    return i == 0 ? &number_tensor_ : i == 1 ? &condition_tensor_ : &values_[size_t(i - 2)].tensor;
  }
  // The condition comes first.
  Tensor make(int i, const Shape& shape) {
    if (i > 0) return made_[size_t(i - 1)].make(types_[size_t(i - 1)], shape);
    require_one(shape, "body's condition");
    next_condition_ = shape;
    return {Type::boolean, Where::host, shape, &goes_on_};
  }

 private:
  std::vector<HostValue> values_, made_;
  const std::vector<Type>& types_;
  int64_t number_ = 0;
  bool condition_ = true, goes_on_;
  Shape next_condition_;
  const Tensor number_tensor_;
  Tensor condition_tensor_{Type::boolean, Where::host, Shape(), &condition_};
};

// The step without the values that go on in host memory.
class OnDevice final : public ops::InnerContext {
 public:
  OnDevice(ops::Context& outer, int first, size_t left_out)
      : InnerContext(outer), first_(first), left_out_(int(left_out)) {}
  int input_count() const override { return outer_.input_count() - left_out_; }
  int output_count() const override { return outer_.output_count() - left_out_; }
  const Tensor* find_input(int i) override { return outer_.find_input(i < first_ ? i : i + left_out_); }
  Tensor output(int i, const Shape& shape) override { return outer_.output(i + left_out_, shape); }
  bool wants_output(int i) const override { return outer_.wants_output(i + left_out_); }

 private:
  const int first_, left_out_;
};

// The step as a loop that runs so often, with all that it carries on the device.
class Counted final : public ops::InnerContext {
 public:
  Counted(ops::Context& outer, int first, int64_t count, std::vector<Tensor> uploaded)
      : InnerContext(outer), first_(first), count_(count), uploaded_(std::move(uploaded)) {}
  Counted(const Counted&) = delete;
  int input_count() const override { return outer_.input_count(); }
  int output_count() const override { return outer_.output_count(); }
  const Tensor* find_input(int i) override {
    if (i < first_) return i == 0 ? &count_tensor_ : nullptr;
    const size_t value = size_t(i - first_);
    return value < uploaded_.size() ? &uploaded_[value] : outer_.find_input(i);
  }
  Tensor output(int i, const Shape& shape) override { return outer_.output(i, shape); }
  bool wants_output(int i) const override { return size_t(i) >= uploaded_.size() && outer_.wants_output(i); }

 private:
  const int first_;
  int64_t count_;
  const std::vector<Tensor> uploaded_;
  const Tensor count_tensor_{Type::i64, Where::host, Shape(), &count_};
};

// What the body makes on the host for the next iteration, if it does so with that alone.
std::optional<Plan> host_part_of(const Plan& body) {
  Plan part = body;
  part.outputs.resize(1 + body.host_carried);
  part.steps.clear();
  std::set<int> wanted(part.outputs.begin(), part.outputs.end());
  for (auto step = body.steps.rbegin(); step != body.steps.rend(); ++step) {
    if (std::ranges::none_of(step->outputs, [&](int value) { return wanted.contains(value); })) continue;
    if (step->runs != Runs::on_host) return std::nullopt;
    part.steps.insert(part.steps.begin(), *step);
    wanted.insert(step->inputs.begin(), step->inputs.end());
  }
  return part;
}

// Has the iteration's number and the condition on the host, and what it hands on there. Of more iterations than so many
// `beyond` is what runs, if there is one.
class Loop final : public Repeated {
 public:
  Loop(Plan& plan, std::optional<Plan> host_part, std::unique_ptr<ops::Op> beyond, int64_t most)
      : Loop(plan, std::move(host_part), std::move(beyond), most, shape_of_one(plan, plan.host_inputs.at(0)),
             shape_of_one(plan, plan.host_inputs.at(1)), first_types(plan)) {}
  void prepare(ops::Prepack& loader) override {
    Repeated::prepare(loader);
    if (host_part_) host_part_->prepare(loader);
    if (beyond_) beyond_->prepare(loader);
  }
  void run(ops::Context& context) const override {
    int64_t most = number(context, 0, "trip count", kUncounted);
    if (host_part_) {
      HostPart ahead = begin(context);
      most = count(context, ahead, most);
      if (is_beyond(most)) return run_beyond(context, most, ahead);
    } else if (is_beyond(most)) {
      return beyond_->run(context);
    }
    const OneByOne around(most == kUncounted ? 1 : most);
    HostPart on_host = begin(context);
    OnDevice on_device(context, kOwn, host_types_.size());
    Run run(on_device, *this, on_host);
    for (int64_t i = 0; i < most && on_host.goes_on(); ++i) run.next(*body_, i, i + 1 == most);
    run.finish(unmade_, std::vector<bool>(unmade_.size()));
    hand_out(context, on_host);
  }

 private:
  static constexpr int kOwn = 2;  // inputs: the count and the condition
  static constexpr int64_t kUncounted = std::numeric_limits<int64_t>::max();

  Loop(Plan& plan, std::optional<Plan> host_part, std::unique_ptr<ops::Op> beyond, int64_t most, Shape number,
       Shape condition, std::vector<Type> host_types)
      : Repeated(plan, 1 + host_types.size(), plan.inputs.size() - plan.outer_inputs),
        number_shape_(number),
        condition_shape_(condition),
        host_types_(std::move(host_types)),
        host_part_(host_part ? std::make_unique<Program>(std::move(*host_part)) : nullptr),
        beyond_(std::move(beyond)),
        most_(most) {}

  static std::vector<Type> first_types(const Plan& plan) {
    std::vector<Type> types = types_of(plan, 1);
    types.resize(plan.host_carried);
    return types;
  }

  bool is_beyond(int64_t count) const { return beyond_ && count > most_ / OneByOne::times(); }

  HostPart begin(ops::Context& context) const {
    std::vector<HostValue> values;
    for (size_t i = 0; i < host_types_.size(); ++i) values.emplace_back(context.input(kOwn + int(i)));
    const bool goes_on = number(context, 1, "condition", true);
    return HostPart(std::move(values), host_types_, number_shape_, condition_shape_, goes_on);
  }
  static void hand_out(ops::Context& context, const HostPart& last) {
    for (size_t i = 0; i < last.values().size(); ++i) {
      if (!context.wants_output(int(i))) continue;
      const Tensor& value = last.values()[i].tensor;
      std::memcpy(context.output(int(i), value.shape).data, value.data, value.bytes());
    }
  }

  // A body's run that makes what is on the host alone.
  class Ahead final : public ops::InnerContext {
   public:
    Ahead(ops::Context& outer, const Loop& loop, HostPart& on_host)
        : InnerContext(outer), on_device_(loop.on_device_), on_host_(on_host) {}
    int input_count() const override { return outer_.input_count(); }
    int output_count() const override { return on_host_.count() - 1; }
    const Tensor* find_input(int i) override {
      const int on_host = i - on_device_;
      return on_host < on_host_.count() ? on_host_.find(on_host) : outer_.find_input(i);
    }
    Tensor output(int i, const Shape& shape) override { return on_host_.make(i, shape); }
    bool wants_output(int) const override { return true; }

   private:
    const int on_device_;
    HostPart& on_host_;
  };
  // How many iterations there will be.
  int64_t count(ops::Context& context, HostPart& ahead, int64_t most) const {
    Ahead run(context, *this, ahead);
    int64_t count = 0;
    for (; count < most && ahead.goes_on(); ++count) {
      ahead.begin(count);
      host_part_->run(run);
      ahead.end();
    }
    return count;
  }

  void run_beyond(ops::Context& context, int64_t count, const HostPart& last) const {
    std::vector<Tensor> uploaded;
    for (size_t i = 0; i < host_types_.size(); ++i) {
      const Tensor& given = context.input(kOwn + int(i));
      Tensor& to = uploaded.emplace_back(given);
      to.where = Where::device;
      to.data = context.scratch(ops::whole_words(given.bytes()));
      ops::store(context.stream(), given, to.data);
    }
    Counted counted(context, kOwn, count, uploaded);
    beyond_->run(counted);
    for (const Tensor& value : uploaded)
      if (value.data) context.give_back(value.data);
    hand_out(context, last);
  }

  class Run final : public Iterations {
   public:
    Run(ops::Context& outer, const Loop& loop, HostPart& on_host)
        : Iterations(outer, kOwn, loop.types_, loop.carried_), on_device_(loop.on_device_), on_host_(on_host) {}
    void next(const Program& body, int64_t i, bool is_last) {
      on_host_.begin(i);
      run(body, is_last);
      on_host_.end();
    }

    int input_count() const override { return Iterations::input_count() + on_host_.count(); }
    int output_count() const override { return Iterations::output_count() + on_host_.count() - 1; }
    const Tensor* find_input(int i) override {
      if (i < on_device_) return Iterations::find_input(i);
      const int on_host = i - on_device_;
      return on_host < on_host_.count() ? on_host_.find(on_host) : Iterations::find_input(i - on_host_.count());
    }
    Tensor output(int i, const Shape& shape) override {
      const int on_host = on_host_.count() - 1;
      return i < on_host ? on_host_.make(i, shape) : Iterations::output(i - on_host, shape);
    }

   private:
    const int on_device_;
    HostPart& on_host_;
  };

  template <class T>
  static T number(ops::Context& context, int i, const char* what, T otherwise) {
    const Tensor* const given = context.find_input(i);
    if (!given) return otherwise;
    require_one(given->shape, what);
    return *given->as<const T>();
  }

  const Shape number_shape_, condition_shape_;
  const std::vector<Type> host_types_;  // of what goes on in host memory
  const std::unique_ptr<Program> host_part_;
  const std::unique_ptr<ops::Op> beyond_;
  const int64_t most_;  // with all that loops around repeat it
};

}  // namespace

Shape shape_of_one(const Plan& body, int value) {
  const auto& dims = body.values[size_t(value)].dims;
  return dims && dims->size() == 1 ? Shape({1}) : Shape();
}

std::unique_ptr<ops::Op> make_loop(std::vector<Body>& bodies) {
  Plan& body = *bodies[0].plan;
  if (body.by_data) return make_loop_by_data(body);
  std::optional<Plan> host_part;
  const bool is_counted = hands_on_condition(body);
  if (!is_counted || body.host_carried > 0) host_part = host_part_of(body);
  std::unique_ptr<ops::Op> beyond;
  int64_t most = 0;
  if (bodies.size() > 1 && (host_part || (is_counted && body.host_carried == 0))) {
    most = bodies[1].plan->beyond;
    beyond = make_loop_by_data(*bodies[1].plan, host_part.has_value());
  }
  return std::make_unique<Loop>(body, std::move(host_part), std::move(beyond), most);
}

}  // namespace encore::fuse
