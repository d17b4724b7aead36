// HannWindow, HammingWindow and BlackmanWindow: sums of a few cosines.
#include <cmath>

#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

// Computed in doubles, whatever the type.
template <class T>
struct CosineSum {
  T* y;
  double a0, a1, a2, step;
  DEVICE_FN void operator()(int64_t i) const {
    const double angle = step * double(i);
    const double value = a0 + a2 * std::cos(2 * angle) - a1 * std::cos(angle);  // 1 at the peak, exactly
    if constexpr (sizeof(T) == 2 && !std::is_integral_v<T>)
      y[i] = T(float(value));
    else
      y[i] = T(value);
  }
};

class SignalWindow : public Op {
 public:
  explicit SignalWindow(const NodeInfo& node) : periodic_(node.get_int("periodic", 1) != 0) {
    const std::string& name = node.op_type();
    if (name == "HannWindow")
      a0_ = 0.5, a1_ = 0.5, a2_ = 0;
    else if (name == "HammingWindow")
      a0_ = 25. / 46, a1_ = 1 - 25. / 46, a2_ = 0;
    else
      a0_ = 0.42, a1_ = 0.5, a2_ = 0.08;
  }
  void run(Context& context) const override {
    const Tensor& given = context.input(0);
    require(given.count() == 1, "size has ", given.count(), " values; it must have one");
    const int64_t size = host_ints(given, "size")[0];
    require(size >= 0, "size is ", size, "; it can't be negative");
    const Tensor y = context.output(0, Shape{size});
    const double step = 2 * 3.14159265358979323846 / double(periodic_ ? size : size - 1);
    dispatch(NumberList{}, y.type, [&]<class T>() {
      device::for_each_index(context.stream(), size, CosineSum<T>{y.as<T>(), a0_, a1_, a2_, step});
    });
  }

 private:
  bool periodic_;
  double a0_, a1_, a2_;
};

}  // namespace

std::vector<OpRow> signal_window_rows() {
  std::vector<OpRow> rows;
  for (const char* name : {"HannWindow", "HammingWindow", "BlackmanWindow"})
    rows.push_back({.name = name,
                    .since = 17,
                    .types = {in(0, kIndices), out(0, kNumbers)},
                    .make = make<SignalWindow>,
                    .host_inputs = {0}});
  return rows;
}

}  // namespace encore::ops
