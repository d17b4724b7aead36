// Hardmax: 1 where a row has its greatest value, the first of them, and 0 elsewhere.
#include "device/divide.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/norm/softmax.h"
#include "ops/reduce/reductions.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

// Element i lies at [outer, at, inner] where rows go along the middle.
template <class T>
struct MarkChosen {
  static constexpr int kPack = device::pack_size<T>();
  const int64_t* chosen;  // of each outer and inner
  T* y;
  int64_t count, width, inner;
  device::Divider by_inner, by_width;
  bool aligned;
  DEVICE_FN void operator()(int64_t pack) const {
    const int64_t first = pack * kPack;
    const int here = count - first < kPack ? int(count - first) : kPack;
    int64_t in_row, at;
    const int64_t outer = by_width(by_inner(first, in_row), at);
    const int64_t* of_outer = chosen + outer * inner;
    device::Pack<T, kPack> marks;
    UNROLL for (int j = 0; j < kPack; ++j) {
      marks.at[j] = T(float(j < here && of_outer[in_row] == at));
      if (++in_row < inner) continue;
      in_row = 0;
      if (++at < width) continue;
      at = 0;
      of_outer += inner;
    }
    device::store_pack(y + first, marks, aligned, here);
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
      using Kernel = MarkChosen<T>;
      const bool aligned = device::is_pack_aligned<Kernel::kPack>(y.as<T>());
      device::for_each_index(context.stream(), (n + Kernel::kPack - 1) / Kernel::kPack,
                             Kernel{chosen, y.as<T>(), n, rows.width, rows.inner, device::Divider(rows.inner, n),
                                    device::Divider(rows.width, n), aligned});
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
