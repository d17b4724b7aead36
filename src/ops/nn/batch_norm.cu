// BatchNormalization, with the statistics given or, in training, the batch's own.
#include <cmath>

#include "device/fast_math.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/elementwise/channel_map.h"
#include "ops/nn/batch_statistics.h"
#include "ops/nn/window.h"
#include "ops/op.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;

template <class C>
struct Affine {
  C factor, offset;
};
template <class T>
struct Normalize {
  using C = Compute<T>;
  static constexpr bool kReads = true;
  PerChannel scale, bias, mean, variance;  // since opset 14 of another type than the values, perhaps
  C epsilon;
  bool alike = scale.is<T>() && bias.is<T>() && mean.is<T>() && variance.is<T>();
  DEVICE_FN Affine<C> of(int64_t channel) const {
    if (!alike) return of(scale.at<C>(channel), bias.at<C>(channel), mean.at<C>(channel), variance.at<C>(channel));
    const auto at = [&](PerChannel all) { return static_cast<const T*>(all.data)[channel]; };
    const T given[] = {at(scale), at(bias), at(mean), at(variance)};  // all are asked for before one is waited for
    return of(C(given[0]), C(given[1]), C(given[2]), C(given[3]));
  }
  DEVICE_FN C apply(const Affine<C>& of, C x) const { return x * of.factor + of.offset; }

 private:
  DEVICE_FN Affine<C> of(C factor, C offset, C middle, C spread) const {
    const C square = spread + epsilon;
    if constexpr (sizeof(T) == 2)
      factor *= device::fast_inverse_root(square);
    else
      factor /= std::sqrt(square);
    return {factor, offset - middle * factor};
  }
};

class BatchNormalization : public Op {
 public:
  explicit BatchNormalization(const NodeInfo& node)
      : layout_(layout_of(node)),
        epsilon_(node.get_float("epsilon", 1e-5f)),
        momentum_(node.get_float("momentum", 0.9f)) {
    const auto decline = [](bool it, const char* why) {
      if (it) fail(Code::not_supported, why);
    };
    bool more = false;
    for (int i = 1; i < node.output_count(); ++i) more |= node.has_output(i);
    const bool says_so = node.since_version() >= 14;  // before, the outputs of training ask for it
    trains_ = says_so ? read_flag(node, "training_mode", false) : more;
    if (node.since_version() < 7)
      decline(node.get_int("is_test", 0) == 0 || more, "is_test is 0; training is supported from opset 7 on");
    decline(node.get_int("spatial", 1) == 0, "spatial is 0; only statistics by channel are supported");
    decline(more && !trains_, "running statistics are asked for, and training_mode is 0");
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
      return PerChannel{given.data, given.type};
    };
    const PerChannel scale = parameter(1, "scale"), bias = parameter(2, "B");
    PerChannel mean = parameter(3, "mean"), variance = parameter(4, "var");
    const Tensor y = context.output(0, x.shape);
    if (trains_) {
      const BatchStatistics found = train(context, {batch, channels, width}, mean, variance);
      mean = found.mean, variance = found.variance;
    }
    dispatch(FloatList{}, x.type, [&]<class T>() {
      map_channels(context.stream(), x.as<const T>(), y.as<T>(), batch, channels, width,
                   Normalize<T>{scale, bias, mean, variance, Compute<T>(epsilon_)});
    });
  }

 private:
  BatchStatistics train(Context& context, const ChannelShape& shape, PerChannel mean, PerChannel variance) const {
    const Tensor& x = context.input(0);
    const auto made = [&](int i) {
      if (!context.wants_output(i)) return PerChannel();
      const Tensor out = context.output(i, Shape{shape.channels});
      return PerChannel{out.data, out.type};
    };
    const Type type = x.type == Type::f64 ? Type::f64 : Type::f32;  // that x is computed in
    const auto own = [&] {
      return PerChannel{context.scratch(size_t(shape.channels) * device::size_bytes(type)), type};
    };
    const BatchStatistics s{own(), own(), mean, variance, made(1), made(2), made(3), made(4)};
    take_statistics(context, x, shape, momentum_, epsilon_, s);
    return s;
  }

  Layout layout_;
  float epsilon_, momentum_;
  bool trains_;
};

}  // namespace

std::vector<OpRow> batch_norm_rows() {
  std::vector<OpRow> rows;
  for (const auto& [domain, types] : {std::pair{kOnnx, kFloats}, {kChannelsLast, kChannelsLastFloats}})
    rows.push_back({.domain = domain,
                    .name = "BatchNormalization",
                    .since = 1,
                    .types = {in(0, types), in_all(1, types)},
                    .make = make<BatchNormalization>,
                    .may_reuse = {{0, 0}}});
  return rows;
}

}  // namespace encore::ops
