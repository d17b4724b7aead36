#include "fuse/loop.h"

#include <limits>
#include <utility>

#include "fuse/iterations.h"

namespace encore::fuse {
namespace {

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

}  // namespace

Shape shape_of_one(const Plan& body, int value) {
  const auto& dims = body.values[size_t(value)].dims;
  return dims && dims->size() == 1 ? Shape({1}) : Shape();
}

std::unique_ptr<ops::Op> make_loop(std::vector<Body>& bodies) {
  Plan& body = *bodies[0].plan;
  if (body.by_data) return make_loop_by_data(body);
  if (bodies.size() == 1) return std::make_unique<Loop>(body, nullptr, 0);
  const int64_t most = bodies[1].plan->beyond;
  return std::make_unique<Loop>(body, make_loop_by_data(*bodies[1].plan), most);
}

}  // namespace encore::fuse
