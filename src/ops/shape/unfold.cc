// UnfoldTensor of com.microsoft: slices of a dimension, which may overlap, each in a last dimension of its own.
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

class UnfoldTensor : public Op {
 public:
  explicit UnfoldTensor(const NodeInfo& node)
      : axis_(node.get_int("dim", -1)), size_(node.get_int("size", 0)), step_(node.get_int("step", 1)) {
    require(size_ >= 1, "size is ", size_, "; it must be at least 1");
    require(step_ >= 1, "step is ", step_, "; it must be at least 1");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank(), axis = checked_axis(axis_, rank, "dim");
    const int64_t whole = x.shape[axis];
    require(size_ <= whole, "slices of ", size_, " of dimension ", axis, " of the input ", x.shape.str());
    const int64_t slices = (whole - size_) / step_ + 1;
    const Shape kept = x.shape.with(axis, slices);
    std::vector<int64_t> dims(kept.dims().begin(), kept.dims().end());
    dims.push_back(size_);
    const Tensor y = context.output(0, Shape(dims));
    if (y.count() == 0) return;
    const int64_t outer = x.shape.count(0, axis), inner = x.shape.count(axis + 1, rank);
    StridedCopy copy;
    copy.add(outer, whole * inner, slices * inner * size_);
    copy.add(slices, slices > 1 ? step_ * inner : 0, inner * size_);
    copy.add(inner, 1, size_);
    copy.add(size_, inner, 1);
    copy.run(context.stream(), x.data, y.data, device::size_bytes(x.type));
  }

 private:
  int64_t axis_, size_, step_;
};

}  // namespace

std::vector<OpRow> unfold_rows() {
  return {{.domain = kMicrosoft,
           .name = "UnfoldTensor",
           .since = 1,
           .types = {in(0, kNumbers | kBool)},
           .make = make<UnfoldTensor>}};
}

}  // namespace encore::ops
