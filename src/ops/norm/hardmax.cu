// Hardmax: 1 where a row has its greatest value, the first of them, and 0 elsewhere.
#include "device/divide.h"
#include "ops/dispatch.h"
#include "ops/reduce/reductions.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

// Element i lies at [outer, at, inner] where rows go along the middle.
template <class T>
struct MarkChosen {
  const int64_t* chosen;  // of each outer and inner
  T* y;
  int64_t inner;
  device::Divider by_inner, by_width;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t in_row, at;
    const int64_t outer = by_width(by_inner(i, in_row), at);
    y[i] = T(float(chosen[outer * inner + in_row] == at));
  }
};

class Hardmax : public Op {
 public:
  explicit Hardmax(const NodeInfo& node)
      : flattens_(node.since_version() < 13), axis_(node.get_int("axis", flattens_ ? 1 : -1)) {}

  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank();
    // Before opset 13 all dimensions from the axis on were one row.
    const bool after_last = flattens_ && axis_ == rank;
    const int axis = after_last || rank == 0 ? rank : checked_axis(axis_, rank);
    const int end = flattens_ || rank == 0 ? rank : axis + 1;
    const Tensor y = context.output(0, x.shape);
    if (x.count() == 0) return;
    const int64_t outer = x.shape.count(0, axis), width = x.shape.count(axis, end), inner = x.shape.count(end, rank);
    auto* chosen = static_cast<int64_t*>(context.scratch(size_t(outer * inner) * sizeof(int64_t)));
    first_greatest(context, Tensor{x.type, x.where, Shape{outer, width, inner}, x.data}, {false, true, false}, chosen);
    const int64_t n = x.count();
    dispatch(FloatList{}, x.type, [&]<class T> {
      device::for_each_index(
          context.stream(), n,
          MarkChosen<T>{chosen, y.as<T>(), inner, device::Divider(inner, n), device::Divider(width, n)});
    });
  }

 private:
  bool flattens_;
  int64_t axis_;
};

}  // namespace

std::vector<OpRow> hardmax_rows() {
  return {{.name = "Hardmax", .since = 1, .types = {in(0, kFloats)}, .make = make<Hardmax>}};
}

}  // namespace encore::ops
