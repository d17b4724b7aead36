#include <memory>
#include <utility>

#include "device/conditional.h"
#include "fuse/body_run.h"
#include "fuse/program.h"
#include "profile/timeline.h"

namespace encore::fuse {
namespace {

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

}  // namespace

std::unique_ptr<ops::Op> make_if(std::vector<Body>& branches) { return std::make_unique<If>(branches); }

}  // namespace encore::fuse
