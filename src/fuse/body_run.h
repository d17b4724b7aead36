// How steps run their bodies.
#pragma once
#include <optional>
#include <vector>

#include "fuse/plan.h"
#include "ops/inner_context.h"

namespace encore::fuse {

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

inline void require_one(const Shape& shape, const char* what) {
  require(shape.count() == 1, "the ", what, " has shape ", shape.str(), "; one element is wanted");
}

inline bool captures(const ops::Context& context) {
  return context.stream().capture_status() != device::CaptureStatus::none;
}

inline bool read_back(ops::Context& context, const bool* condition) {
  bool holds = false;
  context.read_back(&holds, condition, sizeof holds);
  return holds;
}

// What bodies read is there before any of them is captured, whichever runs.
inline void have_inputs(ops::Context& context, int first) {
  for (int i = first; i < context.input_count(); ++i) context.find_input(i);
}

// Of the body's outputs from this one on.
std::vector<Type> types_of(const Plan& body, size_t from);

// What runs a step, whose bodies it takes.
std::unique_ptr<ops::Op> make_if(std::vector<Body>& branches);
std::unique_ptr<ops::Op> make_loop(std::vector<Body>& bodies);
std::unique_ptr<ops::Op> make_scan(const NodeInfo& node, Plan& body);

}  // namespace encore::fuse
