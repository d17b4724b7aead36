// Hardmax: 1 where a row has its greatest value, the first of them, and 0 elsewhere.
#include "device/divide.h"
#include "ops/dispatch.h"
#include "ops/norm/softmax.h"
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
  explicit Hardmax(const NodeInfo& node) : axis_(node) {}

  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const AxisRows rows = axis_.rows_of(x.shape);
    const Tensor y = context.output(0, x.shape);
    if (x.count() == 0) return;
    auto* chosen = static_cast<int64_t*>(context.scratch(size_t(rows.outer * rows.inner) * sizeof(int64_t)));
    first_greatest(context, Tensor{x.type, x.where, Shape{rows.outer, rows.width, rows.inner}, x.data},
                   {false, true, false}, chosen);
    const int64_t n = x.count();
    dispatch(FloatList{}, x.type, [&]<class T> {
      device::for_each_index(
          context.stream(), n,
          MarkChosen<T>{chosen, y.as<T>(), rows.inner, device::Divider(rows.inner, n), device::Divider(rows.width, n)});
    });
  }

 private:
  SoftmaxAxis axis_;
};

}  // namespace

std::vector<OpRow> hardmax_rows() {
  return {{.name = "Hardmax", .since = 1, .types = {in(0, kFloats)}, .make = make<Hardmax>}};
}

}  // namespace encore::ops
