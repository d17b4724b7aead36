// Clip: bounds are attributes up to version 6, and scalar tensors on the device later.
#include <limits>
#include <type_traits>

#include "ops/elementwise/unary.h"

namespace encore::ops {
namespace {

template <class T>
struct Between {
  const T *low, *high;  // null: the value below
  Compute<T> least, greatest;
  DEVICE_FN T operator()(T x) const {
    const Compute<T> value = x, from = low ? Compute<T>(*low) : least, to = high ? Compute<T>(*high) : greatest;
    const Compute<T> raised = value < from ? from : value;  // keeps NaN
    return T(raised > to ? to : raised);
  }
};

// The range of T, as numeric_limits would have it.
template <class T>
constexpr Compute<T> greatest_of() {
  if constexpr (std::is_same_v<T, Half>)
    return 65504.f;
  else if constexpr (std::is_same_v<T, BFloat16>)
    return 0x1.fep127f;
  else
    return std::numeric_limits<T>::max();
}
template <class T>
constexpr Compute<T> least_of() {
  if constexpr (std::is_integral_v<T>)
    return std::numeric_limits<T>::min();
  else
    return -greatest_of<T>();
}

class Clip : public Op {
 public:
  explicit Clip(const NodeInfo& node) : by_attributes_(node.since_version() < 11) {
    if (!by_attributes_) return;
    min_ = node.get_float("min", std::numeric_limits<float>::lowest());
    max_ = node.get_float("max", std::numeric_limits<float>::max());
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor* low = bound(context, 1, "min");
    const Tensor* high = bound(context, 2, "max");
    const Tensor y = context.output(0, x.shape);
    dispatch(NumberList{}, x.type, [&]<class T> {
      Between<T> between{low ? low->as<const T>() : nullptr, high ? high->as<const T>() : nullptr, least_of<T>(),
                         greatest_of<T>()};
      if constexpr (!std::is_integral_v<T>) {  // only floats were clipped by attributes
        if (by_attributes_) between.least = Compute<T>(min_), between.greatest = Compute<T>(max_);
      }
      device::transform(context.stream(), x.count(), y.as<T>(), between, x.as<const T>());
    });
  }

 private:
  const Tensor* bound(Context& context, int i, const char* what) const {
    const Tensor* tensor = by_attributes_ ? nullptr : context.find_input(i);
    if (!tensor) return nullptr;
    require(tensor->shape.is_scalar(), "input ", what, " has shape ", tensor->shape.str(), "; it must be a scalar");
    require(tensor->type == context.input(0).type, "input ", what, " is not of the input's type");
    return tensor;
  }
  bool by_attributes_;
  float min_ = 0, max_ = 0;
};

}  // namespace

std::vector<OpRow> clip_rows() {
  return {{.name = "Clip", .since = 1, .types = {in(0, kNumbers)}, .make = make<Clip>, .may_reuse = {{0, 0}}}};
}

}  // namespace encore::ops
