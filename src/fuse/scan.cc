#include "ops/control/scan.h"

#include <utility>

#include "fuse/iterations.h"
#include "fuse/loop.h"

namespace encore::fuse {
namespace {

// How a node scans: the body's first inputs are carried, then come so many parts of what is scanned, some of them from
// the last one on, as some outputs are.
struct Scanned {
  Scanned(const NodeInfo& node, const Plan& body)
      : inputs(size_t(node.get_int("num_scan_inputs", 0))),
        carried(body.inputs.size() - body.outer_inputs - inputs),
        is_backward(ops::scanned_backward(node, "scan_input_directions", inputs)),
        is_reversed(ops::scanned_backward(node, "scan_output_directions",
                                          body.outputs.size() - std::min(carried, body.outputs.size()))) {}
  size_t inputs, carried;
  std::vector<bool> is_backward, is_reversed;
};

// With bodies of its own.
Plan copy_of(const Plan& plan) {
  Plan copy = plan;
  for (Step& step : copy.steps)
    for (Body& body : step.bodies) body.plan = std::make_shared<Plan>(copy_of(*body.plan));
  return copy;
}

// The body as that of a Loop by data, which has what is scanned as a whole, and finds its part by the iteration's
// number. What is scanned backward is counted from its end: not i is -1 - i.
Plan loop_of(const Plan& body, const Scanned& scanned) {
  Plan loop = copy_of(body);
  loop.by_data = true;
  const std::vector<int64_t> scalar;
  const int number = loop.add({"iteration", Type::i64, scalar}), goes_on = loop.add({"goes_on", Type::boolean, scalar}),
            next = loop.add({"next", Type::boolean, scalar});
  std::vector<Step> steps{loop.step({ops::kOnnx, "Identity", 16}, "next", {goes_on}, {next})};
  const auto from_the_end = [&] {
    const int last = loop.add({"from_the_end", Type::i64, scalar});
    steps.push_back(loop.step({ops::kOnnx, "BitwiseNot", 18}, "from_the_end", {number}, {last}));
    return last;
  };
  for (size_t s = 0; s < scanned.inputs; ++s) {
    int& input = loop.inputs[scanned.carried + s];
    const int part = input;
    Value whole = loop.values[size_t(part)];
    if (whole.dims) whole.dims->insert(whole.dims->begin(), -1);
    input = loop.add(std::move(whole));
    const int index = scanned.is_backward[s] ? from_the_end() : number;
    steps.push_back(loop.step({ops::kOnnx, "Gather", 13, {{"axis", int64_t(0)}}}, loop.values[size_t(part)].name,
                              {input, index}, {part}));
  }
  std::ranges::move(loop.steps, std::back_inserter(steps));
  loop.steps = std::move(steps);
  loop.inputs.insert(loop.inputs.begin(), {number, goes_on});
  loop.outer_inputs += scanned.inputs;
  loop.outputs.insert(loop.outputs.begin(), next);
  return loop;
}

// Along the first dimension. A graph has more iterations than so many as one body, `once`, if there is one.
class Scan final : public Repeated {
 public:
  Scan(Plan& plan, Scanned scanned, std::unique_ptr<ops::Op> once)
      : Scan(plan, std::move(scanned), std::move(once), plan.beyond) {}
  void prepare(ops::Prepack& loader) override {
    Repeated::prepare(loader);
    if (once_) once_->prepare(loader);
  }
  void run(ops::Context& context) const override {
    Run run(context, *this);
    if (once_ && run.length() > most_ / OneByOne::times()) {
      if (captures(context)) return run_once(context, run.length());
      tell_that_graphs_go_otherwise(context);
    }
    const OneByOne around(run.length());
    for (int64_t i = 0; i < run.length(); ++i) run.next(i);
    run.finish(unmade_, scanned_.is_reversed);
  }

 private:
  Scan(Plan& plan, Scanned scanned, std::unique_ptr<ops::Op> once, int64_t most)
      : Repeated(plan, 0, scanned.carried), scanned_(std::move(scanned)), once_(std::move(once)), most_(most) {}

  // Has a count and a condition in front.
  class AsLoop final : public BodyRun {
   public:
    AsLoop(ops::Context& outer, const std::vector<Type>& types, int64_t count)
        : BodyRun(outer, 0, types), count_(count) {}
    AsLoop(const AsLoop&) = delete;
    int input_count() const override { return BodyRun::input_count() + kOwn; }
    const Tensor* find_input(int i) override {
      return i == 0 ? &count_tensor_ : i == 1 ? nullptr : BodyRun::find_input(i - kOwn);
    }
    bool wants_output(int i) const override { return outer_.wants_output(i); }

   private:
    static constexpr int kOwn = 2;
    int64_t count_;
    const Tensor count_tensor_{Type::i64, Where::host, Shape(), &count_};
  };

  class Run final : public Iterations {
   public:
    Run(ops::Context& outer, const Scan& scan)
        : Iterations(outer, 0, scan.types_, scan.carried_), scan_(scan), slices_(scan.scanned_.inputs) {
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
                          size_t(scan_.scanned_.is_backward[s] ? length_ - 1 - i : i) * slices_[s].bytes();
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

  void run_once(ops::Context& context, int64_t length) const {
    AsLoop as_loop(context, types_, length);
    once_->run(as_loop);
  }
  // Whoever records a run sees that by what it reads back.
  void tell_that_graphs_go_otherwise(ops::Context& context) const {
    const Tensor& scanned = context.input(int(carried_));
    char first = 0;
    context.read_back(&first, scanned.data, std::min(sizeof first, scanned.bytes()));
  }

  const Scanned scanned_;
  const std::unique_ptr<ops::Op> once_;
  const int64_t most_;  // with all that loops around repeat it
};

}  // namespace

std::unique_ptr<ops::Op> make_scan(const NodeInfo& node, Plan& body) {
  Scanned scanned(node, body);
  std::unique_ptr<ops::Op> once;
  if (body.beyond > 0) {
    Plan loop = loop_of(body, scanned);
    once = make_loop_by_data(loop, true, scanned.is_reversed);
  }
  return std::make_unique<Scan>(body, std::move(scanned), std::move(once));
}

}  // namespace encore::fuse
