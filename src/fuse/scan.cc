#include "ops/control/scan.h"

#include "fuse/iterations.h"

namespace encore::fuse {
namespace {

// Along the first dimension.
class Scan final : public Repeated {
 public:
  Scan(const NodeInfo& node, Plan& plan)
      : Repeated(plan, 0, plan.inputs.size() - plan.outer_inputs - size_t(node.get_int("num_scan_inputs", 0))),
        scanned_(size_t(node.get_int("num_scan_inputs", 0))),
        is_backward_(ops::scanned_backward(node, "scan_input_directions", scanned_)),
        is_reversed_(ops::scanned_backward(node, "scan_output_directions", unmade_.size())) {}
  void run(ops::Context& context) const override {
    Run run(context, *this);
    const OneByOne around(run.length());
    for (int64_t i = 0; i < run.length(); ++i) run.next(i);
    run.finish(unmade_, is_reversed_);
  }

 private:
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

std::unique_ptr<ops::Op> make_scan(const NodeInfo& node, Plan& body) { return std::make_unique<Scan>(node, body); }

}  // namespace encore::fuse
