#include "fuse/control_flow.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "device/conditional.h"
#include "fuse/program.h"
#include "ops/control/iterations.h"
#include "ops/inner_context.h"
#include "ops/registry.h"
#include "ops/shape/movement.h"
#include "ops/shape/strided.h"
#include "profile/timeline.h"

namespace encore::fuse {
namespace {

using ops::Shape;
using ops::Where;

// A body's run, whose inputs are the step's from `first` on.
class BodyRun : public ops::InnerContext {
 public:
  BodyRun(ops::Context& outer, int first, const std::vector<Type>& types)
      : BodyRun(outer, outer.stream(), first, types) {}
  // The stream is one that captures the body.
  BodyRun(ops::Context& outer, device::StreamRef stream, int first, const std::vector<Type>& types)
      : InnerContext(outer), stream_(stream), first_(first), types_(types) {}
  device::StreamRef stream() const override { return stream_; }
  int input_count() const override { return outer_.input_count() - first_; }
  int output_count() const override { return int(types_.size()); }
  const Tensor* find_input(int i) override { return outer_.find_input(i + first_); }
  bool wants_output(int) const override { return true; }
  // Whoever makes an output that nobody wants does not know of it.
  Tensor output(int i, const Shape& shape) override {
    const Tensor made = outer_.wants_output(i) ? outer_.output(i, shape) : Tensor();
    return made.data ? made : in_scratch(i, shape);
  }

 protected:
  Tensor in_scratch(int i, const Shape& shape) {
    Tensor made{types_[size_t(i)], Where::device, shape, nullptr};
    made.data = outer_.scratch(made.bytes());
    return made;
  }

 private:
  const device::StreamRef stream_;
  const int first_;
  const std::vector<Type>& types_;  // of the step's outputs
};

void require_one(const Shape& shape, const char* what) {
  require(shape.count() == 1, "the ", what, " has shape ", shape.str(), "; one element is wanted");
}

bool captures(const ops::Context& context) { return context.stream().capture_status() != device::CaptureStatus::none; }

bool read_back(ops::Context& context, const bool* condition) {
  bool holds = false;
  context.read_back(&holds, condition, sizeof holds);
  return holds;
}

// What bodies read is there before any of them is captured, whichever runs.
void have_inputs(ops::Context& context, int first) {
  for (int i = first; i < context.input_count(); ++i) context.find_input(i);
}

// A branch that is captured, as the other one is, too: both make the same.
class CapturedBranch final : public BodyRun {
 public:
  CapturedBranch(ops::Context& outer, device::StreamRef stream, const std::vector<Type>& types,
                 std::vector<std::optional<Shape>>& shapes)
      : BodyRun(outer, stream, 1, types), shapes_(shapes) {}
  Tensor output(int i, const Shape& shape) override {
    std::optional<Shape>& known = shapes_[size_t(i)];
    if (known && *known != shape)
      fail(Code::capture_forbidden, "output ", i, " has shape ", known->str(), " in one branch and ", shape.str(),
           " in the other, between which data decides");
    known = shape;
    return BodyRun::output(i, shape);
  }

 private:
  std::vector<std::optional<Shape>>& shapes_;
};

std::vector<Type> types_of(const Plan& body, size_t from) {
  std::vector<Type> types;
  for (size_t i = from; i < body.outputs.size(); ++i) types.push_back(body.values[size_t(body.outputs[i])].type);
  return types;
}

class If final : public ops::Op {
 public:
  explicit If(std::vector<Body>& branches) : types_(types_of(*branches.at(0).plan, 0)) {
    for (Body& branch : branches)
      (branch.name == kThen ? then_ : else_) = std::make_unique<Program>(std::move(*branch.plan));
    if (!then_ || !else_) fail(Code::internal, "an If lacks a branch");
  }
  void prepare(ops::Prepack& loader) override {
    then_->prepare(loader);
    else_->prepare(loader);
  }
  void run(ops::Context& context) const override {
    const Tensor& test = context.input(0);
    require_one(test.shape, "condition");
    const bool* const condition = test.as<const bool>();
    const bool is_on_device = test.where == Where::device;
    if (is_on_device && captures(context)) return capture(context, condition);
    BodyRun branch(context, 1, types_);
    ((is_on_device ? read_back(context, condition) : *condition) ? then_ : else_)->run(branch);
  }

 private:
  void capture(ops::Context& context, const bool* condition) const {
    have_inputs(context, 1);
    std::vector<std::optional<Shape>> shapes(types_.size());
    const auto branch = [&](const Program& program) {
      return [&](device::StreamRef stream) {
        const profile::Timeline::Scope untimed(nullptr);  // no event is recorded in what a condition decides about
        CapturedBranch run(context, stream, types_, shapes);
        program.run(run);
      };
    };
    device::capture_if(context.stream(), condition, branch(*then_), branch(*else_));
  }

  static constexpr const char* kThen = "then_branch";
  const std::vector<Type> types_;
  std::unique_ptr<Program> then_, else_;
};

// Iterations of one body. Values go on from each to the next, the first ones that it makes, and others are collected.
class Iterations : public BodyRun {
 public:
  Iterations(ops::Context& outer, int first, const std::vector<Type>& types, size_t carried)
      : BodyRun(outer, first, types), made_(types.size()), parts_(types.size() - carried) {
    for (size_t i = 0; i < carried; ++i) values_.push_back(outer.input(first + int(i)));
  }

  // The last one's values are made where they are wanted.
  void run(const Program& body, bool is_last) {
    is_last_ = is_last;
    std::ranges::fill(made_, std::nullopt);
    body.run(*this);
    for (size_t i = 0; i < made_.size(); ++i) {
      if (!made_[i]) fail(Code::internal, "a body has not made its output ", i);
      if (i >= values_.size()) {
        parts_[i - values_.size()].push_back(*made_[i]);
      } else {
        if (owns_values_) let_go(values_[i]);
        values_[i] = *made_[i];
      }
    }
    owns_values_ = !is_last;
  }

  // `unmade` are shapes of what is collected, if there was no iteration.
  void finish(const std::vector<Shape>& unmade, const std::vector<bool>& is_reversed) {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (is_last_) continue;
      const Tensor to = BodyRun::output(int(i), values_[i].shape);
      ops::copy_bytes(stream(), values_[i].data, to.data, int64_t(to.bytes()));
      if (owns_values_) let_go(values_[i]);
    }
    for (size_t i = 0; i < parts_.size(); ++i) join(i, parts_[i], unmade[i], is_reversed[i]);
  }

  const Tensor* find_input(int i) override {
    return size_t(i) < values_.size() ? &values_[size_t(i)] : BodyRun::find_input(i);
  }
  Tensor output(int i, const Shape& shape) override {
    std::optional<Tensor>& made = made_[size_t(i)];
    if (!made || made->shape != shape)
      made = is_last_ && size_t(i) < values_.size() ? BodyRun::output(i, shape) : in_scratch(i, shape);
    return *made;
  }

 private:
  void let_go(const Tensor& value) {
    if (value.data) give_back(value.data);
  }
  void join(size_t i, const std::vector<Tensor>& parts, const Shape& unmade, bool is_reversed) {
    const Shape shape = parts.empty() ? unmade : parts[0].shape;
    std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
    dims.insert(dims.begin(), int64_t(parts.size()));
    std::vector<const void*> from;
    for (const Tensor& part : parts) {
      require(part.shape == shape, "an output that is collected over the iterations has shape ", shape.str(),
              " in iteration 0 and ", part.shape.str(), " in iteration ", from.size(), "; it must keep its shape");
      from.push_back(part.data);
    }
    if (is_reversed) std::ranges::reverse(from);
    const Tensor to = BodyRun::output(int(values_.size() + i), Shape(dims));
    if (to.bytes()) ops::concatenate(stream(), from, to.bytes() / from.size(), to.data);
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) let_go(*part);  // the latest are found first
  }

  std::vector<Tensor> values_;
  std::vector<std::optional<Tensor>> made_;
  std::vector<std::vector<Tensor>> parts_;
  bool is_last_ = false, owns_values_ = false;
};

// What has one body that runs many times.
class Repeated : public ops::Op {
 public:
  // The body's first outputs, as many as `own`, are none of the step's.
  Repeated(Plan& plan, size_t own, size_t carried)
      : types_(types_of(plan, own)), carried_(carried), on_device_(int(plan.inputs.size())) {
    if (carried > types_.size()) fail(Code::internal, "more values go on than a body makes");
    for (size_t i = own + carried; i < plan.outputs.size(); ++i) {
      std::vector<int64_t> dims = plan.values[size_t(plan.outputs[i])].dims.value_or(std::vector<int64_t>());
      for (int64_t& dim : dims) dim = std::max<int64_t>(dim, 0);
      unmade_.emplace_back(dims);
    }
    body_ = std::make_unique<Program>(std::move(plan));
  }
  void prepare(ops::Prepack& loader) override { body_->prepare(loader); }

 protected:
  const std::vector<Type> types_;  // of the step's outputs
  const size_t carried_;
  const int on_device_;        // inputs of the body
  std::vector<Shape> unmade_;  // as onnxruntime has what is collected of no iterations
  std::unique_ptr<Program> body_;
};

// Of an iteration's number or condition, as the body says: a scalar or a vector of one.
Shape shape_of_one(const Plan& body, int value) {
  const auto& dims = body.values[size_t(value)].dims;
  return dims && dims->size() == 1 ? Shape({1}) : Shape();
}

// Has the iteration's number and the condition on the host.
class Loop final : public Repeated {
 public:
  explicit Loop(Plan& plan)
      : Loop(plan, shape_of_one(plan, plan.host_inputs.at(0)), shape_of_one(plan, plan.host_inputs.at(1))) {}
  void run(ops::Context& context) const override {
    const int64_t most = number(context, 0, "trip count", std::numeric_limits<int64_t>::max());
    Run run(context, *this, number(context, 1, "condition", true));
    for (int64_t i = 0; i < most && run.goes_on(); ++i) run.next(*body_, i, i + 1 == most);
    run.finish(unmade_, std::vector<bool>(unmade_.size()));
  }

 private:
  static constexpr int kOwn = 2;  // inputs: the count and the condition; or the iteration's number and the condition

  Loop(Plan& plan, Shape number, Shape condition)
      : Repeated(plan, 1, plan.inputs.size() - plan.outer_inputs), number_shape_(number), condition_shape_(condition) {}

  class Run final : public Iterations {
   public:
    Run(ops::Context& outer, const Loop& loop, bool goes_on)
        : Iterations(outer, kOwn, loop.types_, loop.carried_),
          on_device_(loop.on_device_),
          goes_on_(goes_on),
          next_condition_(loop.condition_shape_),
          number_tensor_{Type::i64, Where::host, loop.number_shape_, &number_} {}
    bool goes_on() const { return goes_on_; }
    void next(const Program& body, int64_t i, bool is_last) {
      number_ = i;
      condition_ = goes_on_;
      condition_tensor_.shape = next_condition_;
      run(body, is_last);
    }

    int input_count() const override { return Iterations::input_count() + kOwn; }
    int output_count() const override { return Iterations::output_count() + 1; }
    const Tensor* find_input(int i) override {
      if (i == on_device_) return &number_tensor_;
      if (i == on_device_ + 1) return &condition_tensor_;
      return Iterations::find_input(i < on_device_ ? i : i - kOwn);
    }
    Tensor output(int i, const Shape& shape) override {
      if (i > 0) return Iterations::output(i - 1, shape);
      require_one(shape, "body's condition");
      next_condition_ = shape;
      return {Type::boolean, Where::host, shape, &goes_on_};
    }

   private:
    const int on_device_;
    int64_t number_ = 0;
    bool condition_ = true, goes_on_;
    Shape next_condition_;
    const Tensor number_tensor_;
    Tensor condition_tensor_{Type::boolean, Where::host, Shape(), &condition_};
  };

  template <class T>
  static T number(ops::Context& context, int i, const char* what, T otherwise) {
    const Tensor* const given = context.find_input(i);
    if (!given) return otherwise;
    require_one(given->shape, what);
    return *given->as<const T>();
  }

  const Shape number_shape_, condition_shape_;
};

// Has these on the device.
class LoopByData final : public Repeated {
 public:
  explicit LoopByData(Plan& plan)
      : LoopByData(plan, shape_of_one(plan, plan.inputs.at(0)), shape_of_one(plan, plan.inputs.at(1))) {}
  void run(ops::Context& context) const override {
    ops::IterationLimits limits{.count_on_host = std::numeric_limits<int64_t>::max(), .condition_on_host = true};
    limit(context, 0, "trip count", limits.count, limits.count_on_host);
    limit(context, 1, "condition", limits.condition, limits.condition_on_host);
    const ops::IterationCells cells{static_cast<int64_t*>(context.scratch(sizeof(int64_t))),
                                    static_cast<bool*>(context.scratch(sizeof(bool))),
                                    static_cast<bool*>(context.scratch(sizeof(bool)))};
    ops::begin_iterations(context.stream(), cells, limits);
    if (captures(context)) return capture(context, cells, limits);
    Counted<Iterations> run(*this, cells, context, kOwn, types_, carried_);
    while (read_back(context, cells.goes_on)) {
      run.begin();
      run.run(*body_, false);
      ops::end_iteration(context.stream(), cells, limits);
    }
    run.finish(unmade_, std::vector<bool>(unmade_.size()));
  }

 private:
  static constexpr int kOwn = 2;  // as Loop's

  LoopByData(Plan& plan, Shape number, Shape condition)
      : Repeated(plan, 1, plan.inputs.size() - plan.outer_inputs - kOwn),
        number_shape_(number),
        condition_shape_(condition) {}

  // A body's run with the iteration's number and the condition.
  template <class Run>
  class Counted final : public Run {
   public:
    template <class... Args>
    explicit Counted(const LoopByData& loop, const ops::IterationCells& cells, Args&&... args)
        : Run(std::forward<Args>(args)...),
          number_{Type::i64, Where::device, loop.number_shape_, cells.number},
          condition_{Type::boolean, Where::device, loop.condition_shape_, cells.goes_on},
          next_{Type::boolean, Where::device, loop.condition_shape_, cells.next} {}
    void begin() { condition_.shape = next_.shape; }
    bool reads_another_shape() const { return reads_condition_ && condition_.shape != next_.shape; }
    int input_count() const override { return Run::input_count() + kOwn; }
    int output_count() const override { return Run::output_count() + 1; }
    const Tensor* find_input(int i) override {
      reads_condition_ |= i == 1;
      return i == 0 ? &number_ : i == 1 ? &condition_ : Run::find_input(i - kOwn);
    }
    Tensor output(int i, const Shape& shape) override {
      if (i > 0) return Run::output(i - 1, shape);
      require_one(shape, "body's condition");
      next_.shape = shape;
      return next_;
    }

   private:
    const Tensor number_;
    Tensor condition_, next_;
    bool reads_condition_ = false;
  };

  // A body that is captured once: values go on by copies to where each iteration has them.
  class CapturedIteration : public BodyRun {
   public:
    CapturedIteration(ops::Context& outer, device::StreamRef stream, const std::vector<Type>& types,
                      const std::vector<Tensor>& values)
        : BodyRun(outer, stream, kOwn, types), values_(values), made_(values.size()) {}
    const Tensor* find_input(int i) override {
      return size_t(i) < values_.size() ? &values_[size_t(i)] : BodyRun::find_input(i);
    }
    Tensor output(int i, const Shape& shape) override {
      if (size_t(i) >= values_.size()) fail(Code::capture_forbidden, "data decides how much a loop collects");
      if (shape != values_[size_t(i)].shape)
        fail(Code::capture_forbidden, "a value of a loop whose end data decides begins with shape ",
             values_[size_t(i)].shape.str(), " and goes on with ", shape.str());
      Tensor& made = made_[size_t(i)];
      if (!made.data) made = in_scratch(i, shape);
      return made;
    }
    void hand_on() {
      for (size_t i = 0; i < values_.size(); ++i)
        ops::copy_bytes(stream(), made_[i].data, values_[i].data, int64_t(made_[i].bytes()));
    }

   private:
    const std::vector<Tensor>& values_;
    std::vector<Tensor> made_;
  };

  void capture(ops::Context& context, const ops::IterationCells& cells, const ops::IterationLimits& limits) const {
    have_inputs(context, kOwn);
    BodyRun results(context, kOwn, types_);
    std::vector<Tensor> values;
    for (size_t i = 0; i < carried_; ++i) {
      const Tensor& begins = context.input(kOwn + int(i));
      values.push_back(results.output(int(i), begins.shape));
      ops::copy_bytes(context.stream(), begins.data, values[i].data, int64_t(begins.bytes()));
    }
    device::capture_while(context.stream(), cells.goes_on, [&](device::StreamRef stream) {
      const profile::Timeline::Scope untimed(nullptr);
      Counted<CapturedIteration> iteration(*this, cells, context, stream, types_, values);
      body_->run(iteration);
      if (iteration.reads_another_shape()) fail(Code::capture_forbidden, "the condition of a loop changes its shape");
      iteration.hand_on();
      ops::end_iteration(stream, cells, limits);
    });
  }

  template <class T>
  static void limit(ops::Context& context, int i, const char* what, const T*& on_device, T& on_host) {
    const Tensor* const given = context.find_input(i);
    if (!given) return;
    require_one(given->shape, what);
    if (given->where == Where::device)
      on_device = given->as<const T>();
    else
      on_host = *given->as<const T>();
  }

  const Shape number_shape_, condition_shape_;
};

// Along the first dimension.
class Scan final : public Repeated {
 public:
  Scan(const NodeInfo& node, Plan& plan)
      : Repeated(plan, 0, plan.inputs.size() - plan.outer_inputs - size_t(node.get_int("num_scan_inputs", 0))),
        scanned_(size_t(node.get_int("num_scan_inputs", 0))),
        is_backward_(flags(node, "scan_input_directions", scanned_)),
        is_reversed_(flags(node, "scan_output_directions", unmade_.size())) {}
  void run(ops::Context& context) const override {
    Run run(context, *this);
    for (int64_t i = 0; i < run.length(); ++i) run.next(i);
    run.finish(unmade_, is_reversed_);
  }

 private:
  static std::vector<bool> flags(const NodeInfo& node, const char* attribute, size_t count) {
    std::vector<bool> flags(count);
    const std::vector<int64_t> given = node.find_ints(attribute).value_or(std::vector<int64_t>());
    for (size_t i = 0; i < std::min(count, given.size()); ++i) flags[i] = given[i] == 1;
    return flags;
  }

  class Run final : public Iterations {
   public:
    Run(ops::Context& outer, const Scan& scan)
        : Iterations(outer, 0, scan.types_, scan.carried_), scan_(scan), slices_(scan.scanned_) {
      for (size_t i = 0; i < slices_.size(); ++i) {
        const Tensor& whole = outer_.input(int(scan.carried_ + i));
        require(whole.shape.rank() > 0, "what is scanned has no dimensions");
        if (i == 0) length_ = whole.shape[0];
        require(whole.shape[0] == length_, "what is scanned has ", length_, " and ", whole.shape[0], " elements");
        slices_[i] = whole;
        slices_[i].shape = Shape(whole.shape.dims().subspan(1));
      }
      require(length_ > 0, "there is nothing to be scanned");
    }
    int64_t length() const { return length_; }
    void next(int64_t i) {
      for (size_t s = 0; s < slices_.size(); ++s)
        slices_[s].data = outer_.input(int(scan_.carried_ + s)).as<char>() +
                          size_t(scan_.is_backward_[s] ? length_ - 1 - i : i) * slices_[s].bytes();
      run(*scan_.body_, i + 1 == length_);
    }
    const Tensor* find_input(int i) override {
      const size_t slice = size_t(i) - scan_.carried_;
      return size_t(i) >= scan_.carried_ && slice < slices_.size() ? &slices_[slice] : Iterations::find_input(i);
    }

   private:
    const Scan& scan_;
    std::vector<Tensor> slices_;
    int64_t length_ = 0;
  };

  const size_t scanned_;
  const std::vector<bool> is_backward_, is_reversed_;
};

}  // namespace

size_t host_captures(const Step& step) {
  if (step.bodies.empty()) return 0;
  const Plan& body = *step.bodies[0].plan;
  const size_t all = body.host_inputs.size(), own = step.node->op_type() == "Loop" && !body.by_data ? 2 : 0;
  return all - std::min(all, own);
}

Plan plan_of_body(const Graph& body, BodyEnds ends, size_t outer_inputs, const ops::Settings& settings) {
  Plan plan = plan_of(body, std::move(ends.inputs), std::move(ends.outputs));
  plan.host_inputs = std::move(ends.host_inputs);
  plan.outer_inputs = outer_inputs;
  plan.by_data = ends.by_data;
  plan.settings = settings;
  std::set<int> made;
  for (const Step& step : plan.steps) made.insert(step.outputs.begin(), step.outputs.end());
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    int& output = plan.outputs[i];
    if (made.erase(output)) continue;
    Value value = plan.values[size_t(output)];
    value.is_constant = false;
    value.constant = nullptr;
    const int to = plan.add(std::move(value));
    Step step = plan.step({ops::kOnnx, "Identity", 16}, plan.values[size_t(to)].name, {output}, {to});
    step.runs = i < ends.host_outputs ? Runs::on_host : Runs::on_device;
    plan.steps.push_back(std::move(step));
    output = to;
  }
  return plan;
}

std::unique_ptr<ops::Op> make_control_flow(Step& step) {
  const NodeInfo& node = *step.node;
  if (step.bodies[0].plan->by_data) return std::make_unique<LoopByData>(*step.bodies[0].plan);
  if (node.op_type() == "Loop") return std::make_unique<Loop>(*step.bodies[0].plan);
  if (node.op_type() == "Scan") return std::make_unique<Scan>(node, *step.bodies[0].plan);
  return std::make_unique<If>(step.bodies);
}

}  // namespace encore::fuse
