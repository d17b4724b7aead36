#include "fuse/iterations.h"

#include <algorithm>
#include <utility>

#include "ops/shape/movement.h"
#include "ops/shape/strided.h"

namespace encore::fuse {

Iterations::Iterations(ops::Context& outer, int first, const std::vector<Type>& types, size_t carried)
    : BodyRun(outer, first, types), made_(types.size()), parts_(types.size() - carried) {
  for (size_t i = 0; i < carried; ++i) values_.push_back(outer.input(first + int(i)));
}

void Iterations::run(const Program& body, bool is_last) {
  is_last_ = is_last;
  std::ranges::fill(made_, std::nullopt);
  body.run(*this);
  for (size_t i = 0; i < made_.size(); ++i) {
    if (!made_[i]) fail(Code::internal, "a body has not made its output ", i);
    if (i >= values_.size()) {
      parts_[i - values_.size()].push_back(*made_[i]);
    } else {
      if (owns_values_) let_go(values_[i]);
      changes_shapes_ |= values_[i].shape != made_[i]->shape;
      values_[i] = *made_[i];
    }
  }
  owns_values_ = !is_last;
}

void Iterations::finish(const std::vector<Shape>& unmade, const std::vector<bool>& is_reversed) {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (is_last_) continue;
    const Tensor to = BodyRun::output(int(i), values_[i].shape);
    ops::copy_bytes(stream(), values_[i].data, to.data, int64_t(to.bytes()));
    if (owns_values_) let_go(values_[i]);
  }
  for (size_t i = 0; i < parts_.size(); ++i) join(i, parts_[i], unmade[i], is_reversed[i]);
}

Tensor Iterations::output(int i, const Shape& shape) {
  std::optional<Tensor>& made = made_[size_t(i)];
  if (!made || made->shape != shape)
    made = is_last_ && size_t(i) < values_.size() ? BodyRun::output(i, shape) : in_scratch(i, shape);
  return *made;
}

void Iterations::let_go(const Tensor& value) {
  if (value.data) give_back(value.data);
}

void Iterations::join(size_t i, const std::vector<Tensor>& parts, const Shape& unmade, bool is_reversed) {
  const Shape shape = parts.empty() ? unmade : parts[0].shape;
  std::vector<const void*> from;
  for (const Tensor& part : parts) {
    require(part.shape == shape, "an output that is collected over the iterations has shape ", shape.str(),
            " in iteration 0 and ", part.shape.str(), " in iteration ", from.size(), "; it must keep its shape");
    from.push_back(part.data);
  }
  if (is_reversed) std::ranges::reverse(from);
  const Tensor to = BodyRun::output(int(values_.size() + i), many(int64_t(parts.size()), shape));
  if (to.bytes()) ops::concatenate(stream(), from, to.bytes() / from.size(), to.data);
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) let_go(*part);  // the latest are found first
}

Repeated::Repeated(Plan& plan, size_t own, size_t carried)
    : types_(types_of(plan, own)), carried_(carried), on_device_(int(plan.inputs.size())) {
  if (carried > types_.size()) fail(Code::internal, "more values go on than a body makes");
  for (size_t i = own + carried; i < plan.outputs.size(); ++i) {
    std::vector<int64_t> dims = plan.values[size_t(plan.outputs[i])].dims.value_or(std::vector<int64_t>());
    for (int64_t& dim : dims) dim = std::max<int64_t>(dim, 0);
    unmade_.emplace_back(dims);
  }
  body_ = std::make_unique<Program>(std::move(plan));
}

}  // namespace encore::fuse
