// BatchNormalization at inference.
#include <cmath>

#include "ops/dispatch.h"
#include "ops/nn/channel_map.h"
#include "ops/nn/window.h"
#include "ops/op.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;

// A channel's parameters, which since opset 14 may be of another float type than the values.
struct Parameter {
  const void* data;
  Type type;
  template <class C>
  DEVICE_FN C at(int64_t channel) const {
    if (type == Type::f32) return C(static_cast<const float*>(data)[channel]);
    if (type == Type::f16) return C(float(static_cast<const Half*>(data)[channel]));
    if (type == Type::bf16) return C(float(static_cast<const BFloat16*>(data)[channel]));
    return C(static_cast<const double*>(data)[channel]);
  }
};

template <class C>
struct Affine {
  C factor, offset;
};
template <class C>
struct Normalize {
  static constexpr bool kReads = true;
  Parameter scale, bias, mean, variance;
  C epsilon;
  DEVICE_FN Affine<C> of(int64_t channel) const {
    const C factor = scale.at<C>(channel) / std::sqrt(variance.at<C>(channel) + epsilon);
    return {factor, bias.at<C>(channel) - mean.at<C>(channel) * factor};
  }
  DEVICE_FN C apply(const Affine<C>& of, C x) const { return x * of.factor + of.offset; }
};

class BatchNormalization : public Op {
 public:
  explicit BatchNormalization(const NodeInfo& node)
      : layout_(layout_of(node)), epsilon_(node.get_float("epsilon", 1e-5f)) {
    const auto decline = [](bool it, const char* why) {
      if (it) fail(Code::not_supported, why);
    };
    decline(node.get_int("training_mode", 0) != 0, "training_mode is set; only inference is supported");
    decline(node.get_int("spatial", 1) == 0, "spatial is 0; only statistics by channel are supported");
    for (int i = 1; i < node.output_count(); ++i)
      decline(node.has_output(i), "running statistics are asked for; only inference is supported");
  }

  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank();
    require(rank >= 1, "X is a scalar; it needs a batch dimension");
    const bool last = layout_ == Layout::channels_last;
    const int64_t channels = rank == 1 ? 1 : last ? x.shape.back() : x.shape[1];
    const int64_t width = rank == 1 || last ? 1 : x.shape.count(2, rank);
    const int64_t batch = last && rank > 1 ? x.shape.count(0, rank - 1) : x.shape[0];
    const auto parameter = [&](int i, const char* what) {
      const Tensor& given = context.input(i);
      require(given.shape == Shape{channels}, what, " has shape ", given.shape.str(), "; X ", x.shape.str(), " wants [",
              channels, "]");
      return Parameter{given.data, given.type};
    };
    const Parameter scale = parameter(1, "scale"), bias = parameter(2, "B"), mean = parameter(3, "mean"),
                    variance = parameter(4, "var");
    const Tensor y = context.output(0, x.shape);
    dispatch(FloatList{}, x.type, [&]<class T>() {
      map_channels(context.stream(), x.as<const T>(), y.as<T>(), batch, channels, width,
                   Normalize<Compute<T>>{scale, bias, mean, variance, Compute<T>(epsilon_)});
    });
  }

 private:
  Layout layout_;
  float epsilon_;
};

}  // namespace

std::vector<OpRow> batch_norm_rows() {
  std::vector<OpRow> rows;
  for (const auto& [domain, types] : {std::pair{kOnnx, kFloats}, {kChannelsLast, kChannelsLastFloats}})
    rows.push_back({.domain = domain,
                    .name = "BatchNormalization",
                    .since = 7,
                    .types = {in(0, types), in_all(1, types)},
                    .make = make<BatchNormalization>,
                    .may_reuse = {{0, 0}}});
  return rows;
}

}  // namespace encore::ops
