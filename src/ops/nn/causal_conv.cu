// CausalConvWithState: a depthwise convolution that looks back, over what came before and what comes now.
#include <cmath>

#include "device/divide.h"
#include "device/launch.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;

template <class T>
struct CausalConv {
  const T *x, *w, *bias, *past;  // bias and past may be null
  T *y, *present;                // present may be null
  int64_t length, kernel, channels;
  Divider by_places, by_channels;  // places of a row: `length` of y, then kernel - 1 of present
  bool silu;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t place, channel;
    const int64_t row = by_places(i, place);
    by_channels(row, channel);
    if (place >= length) {
      const int64_t kept = place - length;
      present[row * (kernel - 1) + kept] = seen(row, length + kept - (kernel - 1));
      return;
    }
    float sum = bias ? float(bias[channel]) : 0;
    for (int64_t j = 0; j < kernel; ++j)
      sum += float(w[channel * kernel + j]) * float(seen(row, place + j - (kernel - 1)));
    if (silu) sum = sum / (1 + expf(-sum));
    y[row * length + place] = T(sum);
  }

 private:
  DEVICE_FN T seen(int64_t row, int64_t at) const {
    if (at >= 0) return x[row * length + at];
    return past ? past[row * (kernel - 1) + at + kernel - 1] : T(0.f);
  }
};

class CausalConvWithState : public Op {
 public:
  explicit CausalConvWithState(const NodeInfo& node) {
    const std::string activation = node.get_string("activation", "none");
    silu_ = activation == "silu" || activation == "swish";
    require(silu_ || activation == "none", "activation is \"", activation, "\", not silu, swish or none");
  }
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &w = context.input(1);
    const Tensor *bias = context.find_input(2), *past = context.find_input(3);
    require(x.shape.rank() == 3, "the input has shape ", x.shape.str(), ", not (batch, channels, length)");
    const int64_t batch = x.shape[0], channels = x.shape[1], length = x.shape[2];
    require(w.shape.rank() == 3 && w.shape[0] == channels && w.shape[1] == 1 && w.shape[2] >= 1,
            "the weight has shape ", w.shape.str(), ", not (", channels, ", 1, k)");
    const int64_t kernel = w.shape[2];
    require(!bias || bias->shape == Shape{channels}, "the bias has another shape than (", channels, ")");
    const Shape state{batch, channels, kernel - 1};
    require(!past || past->shape == state, "past_state has another shape than ", state.str());
    const Tensor y = context.output(0, x.shape);
    const Tensor present = context.wants_output(1) ? context.output(1, state) : Tensor();
    const int64_t places = length + (present.data ? kernel - 1 : 0);
    const int64_t count = checked_product(checked_product(batch, channels), places);
    dispatch(TypeList<float, Half, BFloat16>{}, x.type, [&]<class T> {
      const auto of = [](const Tensor* tensor) { return tensor ? tensor->as<const T>() : nullptr; };
      device::for_each_index(
          context.stream(), count,
          CausalConv<T>{x.as<const T>(), w.as<const T>(), of(bias), of(past), y.as<T>(), present.as<T>(), length,
                        kernel, channels, Divider(places, count), Divider(channels, count), silu_});
    });
  }

 private:
  bool silu_;
};

}  // namespace

std::vector<OpRow> causal_conv_rows() {
  return {{.name = "CausalConvWithState",
           .since = 27,
           .types = {in(0, kHalves | Types{Type::f32})},
           .make = make<CausalConvWithState>}};
}

}  // namespace encore::ops
