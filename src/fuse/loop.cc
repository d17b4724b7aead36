#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "device/conditional.h"
#include "fuse/iterations.h"
#include "ops/control/iterations.h"
#include "ops/room.h"
#include "ops/shape/strided.h"
#include "profile/timeline.h"

namespace encore::fuse {
namespace {

// Of an iteration's number or condition, as the body says: a scalar or a vector of one.
Shape shape_of_one(const Plan& body, int value) {
  const auto& dims = body.values[size_t(value)].dims;
  return dims && dims->size() == 1 ? Shape({1}) : Shape();
}

// Behind the iteration's number and the condition.
std::vector<std::string> names_of_values(const Plan& body) {
  std::vector<std::string> names;
  for (size_t i = 2; i < body.inputs.size(); ++i) names.push_back(body.values[size_t(body.inputs[i])].name);
  return names;
}

// Whether the body's next condition is the one that it is given, or always holds.
bool hands_on_condition(const Plan& body) {
  for (int value = body.outputs.at(0);;) {
    if (value == body.inputs.at(1)) return true;
    if (const Tensor* const constant = body.values[size_t(value)].constant)
      return constant->count() == 1 && *constant->as<const bool>();
    const auto makes = [&](const Step& step) { return std::ranges::count(step.outputs, value) > 0; };
    const auto step = std::ranges::find_if(body.steps, makes);
    if (step == body.steps.end() || !step->is_operator() || step->node->op_type() != "Identity") return false;
    value = step->inputs.at(0);
  }
}

// Has the iteration's number and the condition on the host. Of more iterations than so many `beyond` is what runs, if
// there is one.
class Loop final : public Repeated {
 public:
  Loop(Plan& plan, std::unique_ptr<ops::Op> beyond, int64_t most)
      : Loop(plan, std::move(beyond), most, shape_of_one(plan, plan.host_inputs.at(0)),
             shape_of_one(plan, plan.host_inputs.at(1))) {}
  void prepare(ops::Prepack& loader) override {
    Repeated::prepare(loader);
    if (beyond_) beyond_->prepare(loader);
  }
  void run(ops::Context& context) const override {
    constexpr int64_t kUncounted = std::numeric_limits<int64_t>::max();
    const int64_t most = number(context, 0, "trip count", kUncounted);
    if (beyond_ && most > most_ / OneByOne::times()) return beyond_->run(context);
    const OneByOne around(most == kUncounted ? 1 : most);
    Run run(context, *this, number(context, 1, "condition", true));
    for (int64_t i = 0; i < most && run.goes_on(); ++i) run.next(*body_, i, i + 1 == most);
    run.finish(unmade_, std::vector<bool>(unmade_.size()));
  }

 private:
  static constexpr int kOwn = 2;  // inputs: the count and the condition; or the iteration's number and the condition

  Loop(Plan& plan, std::unique_ptr<ops::Op> beyond, int64_t most, Shape number, Shape condition)
      : Repeated(plan, 1, plan.inputs.size() - plan.outer_inputs),
        number_shape_(number),
        condition_shape_(condition),
        beyond_(std::move(beyond)),
        most_(most) {}

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
  const std::unique_ptr<ops::Op> beyond_;
  const int64_t most_;  // with all that loops around repeat it
};

// Has these on the device. What is collected is as long as the host says, if it has the count and no condition ends the
// loop before; otherwise a graph has room for it.
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
    const bool may_run = (limits.count || limits.count_on_host > 0) && (limits.condition || limits.condition_on_host);
    if (may_run && captures(context)) return capture(context, cells, limits);
    Counted<Iterations> run(*this, cells, context, kOwn, types_, carried_);
    bool goes_on = may_run && read_back(context, cells.goes_on);  // once at least: a graph goes another way
    for (int64_t next = 1; goes_on; ++next) {
      run.begin();
      run.run(*body_, false);
      ops::end_iteration(context.stream(), cells, limits);
      goes_on = has_count(limits) ? next < limits.count_on_host : read_back(context, cells.goes_on);
    }
    run.finish(unmade_, std::vector<bool>(unmade_.size()));
  }

 private:
  static constexpr int kOwn = 2;  // as Loop's

  LoopByData(Plan& plan, Shape number, Shape condition)
      : LoopByData(plan, number, condition, hands_on_condition(plan), names_of_values(plan)) {}
  LoopByData(Plan& plan, Shape number, Shape condition, bool is_counted, std::vector<std::string> names)
      : Repeated(plan, 1, plan.inputs.size() - plan.outer_inputs - kOwn),
        number_shape_(number),
        condition_shape_(condition),
        is_counted_(is_counted),
        names_(std::move(names)) {}

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

  // A body that is captured once: values go on by copies to where each iteration has them, and so does what is
  // collected.
  class CapturedIteration : public BodyRun {
   public:
    CapturedIteration(ops::Context& outer, device::StreamRef stream, const std::vector<Type>& types,
                      const std::vector<Tensor>& values, const std::vector<std::string>& names)
        : BodyRun(outer, stream, kOwn, types), values_(values), names_(names), made_(types.size()) {}
    const Tensor* find_input(int i) override {
      return size_t(i) < values_.size() ? &values_[size_t(i)] : BodyRun::find_input(i);
    }
    Tensor output(int i, const Shape& shape) override {
      if (size_t(i) < values_.size() && shape != values_[size_t(i)].shape)
        fail(
            Code::capture_forbidden, "the loop's value '", names_[size_t(i)], "' begins with shape ",
            values_[size_t(i)].shape.str(), " and goes on with ", shape.str(),
            ", and a graph has the body of such a loop once; a buffer of the most that there will be, of which a part ",
            "is written, keeps its shape");
      Tensor& made = made_[size_t(i)];
      if (made.type == Type::undefined) made = in_scratch(i, shape);
      if (made.shape != shape)
        fail(Code::internal, "output ", i, " of a body has shape ", made.shape.str(), " and ", shape.str());
      return made;
    }
    const Tensor& made(size_t i) const {
      if (made_[i].type == Type::undefined) fail(Code::internal, "a body has not made its output ", i);
      return made_[i];
    }
    void hand_on() {
      for (size_t i = 0; i < values_.size(); ++i)
        ops::copy_bytes(stream(), made(i).data, values_[i].data, int64_t(made(i).bytes()));
    }

   private:
    const std::vector<Tensor>& values_;
    const std::vector<std::string>& names_;
    std::vector<Tensor> made_;
  };

  // Whether the host knows how many iterations there are, if there is one.
  bool has_count(const ops::IterationLimits& limits) const { return is_counted_ && !limits.count && !limits.condition; }

  // Room for what the iterations collect; none for what nobody wants.
  std::vector<ops::Room> rooms(ops::Context& context, const CapturedIteration& iteration,
                               const ops::IterationLimits& limits) const {
    std::vector<ops::Room> found(unmade_.size());
    for (size_t c = 0; c < found.size(); ++c) {
      const int output = int(carried_ + c);
      if (!context.wants_output(output)) continue;
      const Shape& part = iteration.made(carried_ + c).shape;
      if (has_count(limits))
        found[c].parts = context.output(output, many(limits.count_on_host, part));
      else
        found[c] = ops::room_in(
            context, output,
            {part, many(0, unmade_[c]), limits.count ? std::numeric_limits<int64_t>::max() : limits.count_on_host});
    }
    return found;
  }

  void capture(ops::Context& context, const ops::IterationCells& cells, ops::IterationLimits limits) const {
    have_inputs(context, kOwn);
    BodyRun results(context, kOwn, types_);
    std::vector<Tensor> values;
    for (size_t i = 0; i < carried_; ++i) {
      const Tensor& begins = context.input(kOwn + int(i));
      values.push_back(results.output(int(i), begins.shape));
      ops::copy_bytes(context.stream(), begins.data, values[i].data, int64_t(begins.bytes()));
    }
    std::vector<ops::Room> collected;
    device::capture_while(context.stream(), cells.goes_on, [&](device::StreamRef stream) {
      const profile::Timeline::Scope untimed(nullptr);  // as in branches
      Counted<CapturedIteration> iteration(*this, cells, context, stream, types_, values, names_);
      body_->run(iteration);
      if (iteration.reads_another_shape()) fail(Code::capture_forbidden, "the condition of a loop changes its shape");
      iteration.hand_on();
      collected = rooms(context, iteration, limits);
      for (size_t c = 0; c < collected.size(); ++c) {
        const Tensor& part = iteration.made(carried_ + c);
        if (!collected[c].parts.data) continue;
        ops::collect(stream, cells, part.data, collected[c].parts.data, part.bytes());
        if (collected[c].count) limits.room = std::min(limits.room, collected[c].parts.shape[0]);
      }
      ops::end_iteration(stream, cells, limits);
    });
    for (const ops::Room& room : collected)
      if (room.count) ops::tell_count(context.stream(), cells, limits, room.count);
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
  const bool is_counted_;                 // no condition ends it
  const std::vector<std::string> names_;  // of the body's inputs from the carried ones on
};

}  // namespace

std::unique_ptr<ops::Op> make_loop(std::vector<Body>& bodies) {
  Plan& body = *bodies[0].plan;
  if (body.by_data) return std::make_unique<LoopByData>(body);
  if (bodies.size() == 1) return std::make_unique<Loop>(body, nullptr, 0);
  Plan& beyond = *bodies[1].plan;
  const int64_t most = beyond.beyond;
  return std::make_unique<Loop>(body, std::make_unique<LoopByData>(beyond), most);
}

}  // namespace encore::fuse
