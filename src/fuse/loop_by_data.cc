#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <utility>

#include "device/conditional.h"
#include "fuse/iterations.h"
#include "fuse/loop.h"
#include "ops/control/iterations.h"
#include "ops/room.h"
#include "ops/shape/strided.h"
#include "profile/timeline.h"

namespace encore::fuse {
namespace {

// Behind the iteration's number and the condition.
std::vector<std::string> names_of_values(const Plan& body) {
  std::vector<std::string> names;
  for (size_t i = 2; i < body.inputs.size(); ++i) names.push_back(body.values[size_t(body.inputs[i])].name);
  return names;
}

// Has the iteration's number and the condition on the device. What is collected is as long as the host says, if it has
// the count and no condition ends the loop before; otherwise a graph has room for it.
class LoopByData final : public Repeated {
 public:
  LoopByData(Plan& plan, bool has_count, std::vector<bool> is_reversed)
      : LoopByData(plan, shape_of_one(plan, plan.inputs.at(0)), shape_of_one(plan, plan.inputs.at(1)), has_count,
                   std::move(is_reversed)) {}
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
      if (run.changes_shapes()) changes_shapes_ = true;
      goes_on = has_count(limits) ? next < limits.count_on_host : read_back(context, cells.goes_on);
    }
    run.finish(unmade_, is_reversed_);
  }

 private:
  static constexpr int kOwn = 2;  // as Loop's

  LoopByData(Plan& plan, Shape number, Shape condition, bool has_count, std::vector<bool> is_reversed)
      : LoopByData(plan, number, condition, has_count || hands_on_condition(plan), names_of_values(plan), plan.beyond) {
    is_reversed_ = std::move(is_reversed);
    is_reversed_.resize(unmade_.size());
  }
  LoopByData(Plan& plan, Shape number, Shape condition, bool is_counted, std::vector<std::string> names, int64_t most)
      : Repeated(plan, 1, plan.inputs.size() - plan.outer_inputs - kOwn),
        number_shape_(number),
        condition_shape_(condition),
        is_counted_(is_counted),
        names_(std::move(names)),
        most_one_by_one_(most) {}

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

  // A body that is captured, and may be asked to keep its values' shapes.
  class CapturedIteration : public BodyRun {
   public:
    CapturedIteration(ops::Context& outer, device::StreamRef stream, const LoopByData& loop,
                      const std::vector<Tensor>& values, bool keeps_shapes)
        : BodyRun(outer, stream, kOwn, loop.types_),
          loop_(loop),
          values_(values),
          keeps_shapes_(keeps_shapes),
          made_(loop.types_.size()) {}
    const Tensor* find_input(int i) override {
      return size_t(i) < values_.size() ? &values_[size_t(i)] : BodyRun::find_input(i);
    }
    Tensor output(int i, const Shape& shape) override {
      if (keeps_shapes_ && size_t(i) < values_.size() && shape != values_[size_t(i)].shape) {
        loop_.changes_shapes_ = true;
        fail_changed(size_t(i), values_[size_t(i)].shape, shape,
                     "and a graph has the body of such a loop once; a buffer of the most that there will be, of which "
                     "a part is written, keeps its shape");
      }
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
    // Values go on by copies, where there is anything to copy to.
    void hand_on(const std::vector<Tensor>& to) {
      for (size_t i = 0; i < to.size(); ++i) {
        if (!to[i].data) continue;
        if (made(i).shape != to[i].shape)
          fail_changed(i, to[i].shape, made(i).shape, "and is read behind the loop, whose end data decides");
        ops::copy_bytes(stream(), made(i).data, to[i].data, int64_t(made(i).bytes()));
      }
    }
    std::vector<Tensor> take_made() { return std::move(made_); }

    // What one iteration gives back the next one takes again. So nothing of it is given back until there is memory for
    // what is to outlive them.
    void hold() { holds_ = true; }
    void give_back(void* scratch) override { holds_ ? held_.push_back(scratch) : BodyRun::give_back(scratch); }
    void let_go() {
      holds_ = false;
      for (void* const scratch : held_) BodyRun::give_back(scratch);
      held_.clear();
    }

   private:
    [[noreturn]] void fail_changed(size_t value, const Shape& begins, const Shape& goes_on, const char* why) const {
      fail(Code::capture_forbidden, "the loop's value '", loop_.names_[value], "' begins with shape ", begins.str(),
           " and goes on with ", goes_on.str(), ", ", why);
    }

    const LoopByData& loop_;
    const std::vector<Tensor>& values_;
    const bool keeps_shapes_;
    std::vector<Tensor> made_;
    bool holds_ = false;
    std::vector<void*> held_;
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

  // What goes on in a capture.
  struct Captured {
    ops::Context& context;
    const ops::IterationCells& cells;
    ops::IterationLimits limits;
    std::vector<Tensor> ends = {};  // of values, where they are wanted behind
    std::vector<ops::Room> collected = {};
  };

  void capture(ops::Context& context, const ops::IterationCells& cells, const ops::IterationLimits& limits) const {
    have_inputs(context, kOwn);
    Captured captured{context, cells, limits};
    const bool goes_one_by_one =
        changes_shapes_ && !limits.count && limits.count_on_host <= most_one_by_one_ / OneByOne::times();
    goes_one_by_one ? capture_one_by_one(captured) : capture_once(captured);
    for (const ops::Room& room : captured.collected)
      if (room.count) ops::tell_count(context.stream(), cells, captured.limits, room.count);
  }

  // Values go on by copies to where each iteration has them.
  void capture_once(Captured& captured) const {
    begin(captured, true);
    device::capture_while(captured.context.stream(), captured.cells.goes_on,
                          [&](device::StreamRef stream) { capture_iteration(captured, stream, captured.ends, true); });
  }

  // Each has values of another shape, and runs if the one before says so.
  void capture_one_by_one(Captured& captured) const {
    begin(captured, false);
    const OneByOne around(captured.limits.count_on_host);
    std::vector<Tensor> values, made;
    for (size_t i = 0; i < carried_; ++i) values.push_back(captured.context.input(kOwn + int(i)));
    for (int64_t i = 0; i < captured.limits.count_on_host; ++i) {
      device::capture_if(captured.context.stream(), captured.cells.goes_on,
                         [&](device::StreamRef stream) { made = capture_iteration(captured, stream, values, false); });
      for (const Tensor& value : i ? values : std::vector<Tensor>()) captured.context.give_back(value.data);
      for (size_t c = carried_; c < made.size(); ++c) captured.context.give_back(made[c].data);
      made.resize(carried_);
      values = std::move(made);
    }
    for (const Tensor& value : values) captured.context.give_back(value.data);
  }

  // What is made of no iterations is what there was before.
  void begin(Captured& captured, bool has_all) const {
    BodyRun results(captured.context, kOwn, types_);
    captured.ends.resize(carried_);
    for (size_t i = 0; i < carried_; ++i) {
      if (!has_all && !captured.context.wants_output(int(i))) continue;
      const Tensor& begins = captured.context.input(kOwn + int(i));
      captured.ends[i] = results.output(int(i), begins.shape);
      ops::copy_bytes(captured.context.stream(), begins.data, captured.ends[i].data, int64_t(begins.bytes()));
    }
  }

  std::vector<Tensor> capture_iteration(Captured& captured, device::StreamRef stream, const std::vector<Tensor>& values,
                                        bool keeps_shapes) const {
    const profile::Timeline::Scope untimed(nullptr);  // as in branches
    ops::IterationLimits& limits = captured.limits;
    Counted<CapturedIteration> iteration(*this, captured.cells, captured.context, stream, *this, values, keeps_shapes);
    if (keeps_shapes && has_count(limits) && !unmade_.empty()) iteration.hold();
    body_->run(iteration);
    if (iteration.reads_another_shape()) fail(Code::capture_forbidden, "the condition of a loop changes its shape");
    iteration.hand_on(captured.ends);
    if (captured.collected.empty()) captured.collected = rooms(captured.context, iteration, limits);
    iteration.let_go();
    for (size_t c = 0; c < captured.collected.size(); ++c) {
      const Tensor& part = iteration.made(carried_ + c);
      const ops::Room& room = captured.collected[c];
      if (!room.parts.data) continue;
      if (Shape(room.parts.shape.dims().subspan(1)) != part.shape)
        fail(Code::capture_forbidden, "an output that is collected over the iterations changes its shape");
      ops::collect(stream, captured.cells, part.data, room.parts.data, part.bytes(),
                   is_reversed_[c] ? limits.count_on_host : 0);
      if (room.count) limits.room = std::min(limits.room, room.parts.shape[0]);
    }
    ops::end_iteration(stream, captured.cells, limits);
    return iteration.take_made();
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
  std::vector<bool> is_reversed_;                    // of what is collected
  const bool is_counted_;                            // no condition ends it
  const std::vector<std::string> names_;             // of the body's inputs from the carried ones on
  const int64_t most_one_by_one_;                    // iterations, with all that loops around repeat them so
  mutable std::atomic<bool> changes_shapes_{false};  // values do, as runs have seen
};

}  // namespace

bool hands_on_condition(const Plan& body) {
  const int given = (body.by_data ? body.inputs : body.host_inputs).at(1);
  for (int value = body.outputs.at(0);;) {
    if (value == given) return true;
    if (const Tensor* const constant = body.values[size_t(value)].constant)
      return constant->count() == 1 && *constant->as<const bool>();
    const auto makes = [&](const Step& step) { return std::ranges::count(step.outputs, value) > 0; };
    const auto step = std::ranges::find_if(body.steps, makes);
    if (step == body.steps.end() || !step->is_operator() || step->node->op_type() != "Identity") return false;
    value = step->inputs.at(0);
  }
}

std::unique_ptr<ops::Op> make_loop_by_data(Plan& body, bool has_count, std::vector<bool> is_reversed) {
  return std::make_unique<LoopByData>(body, has_count, std::move(is_reversed));
}

}  // namespace encore::fuse
