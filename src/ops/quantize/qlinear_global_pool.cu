// QLinearGlobalAveragePool: the mean of each plane of 8-bit integers, of exact sums.
#include "device/launch.h"
#include "ops/nn/window.h"
#include "ops/quantize/linear_bytes.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Block;

struct MeanOfBytes {
  LinearBytes from, to;
  int64_t count;
  DEVICE_FN uint8_t operator()(int sum) const {
    const float scale = *from.scale / (*to.scale * float(count));
    const int differences = sum - from.zero_point() * int(count);
    return to.kept_in_range(rint(float(differences) * scale) + float(to.zero_point()));
  }
};

// A group of threads makes a plane of neighbours.
struct MeanPlanes {
  static constexpr int kThreads = 256, kMaxThreads = kThreads, kGroup = 32, kPlanes = kThreads / kGroup;
  const uint8_t* x;
  uint8_t* y;
  MeanOfBytes mean;
  int64_t planes;
  DEVICE_FN void operator()(Block<device::NoShared>& b, const device::NoShared&) const {
    device::PerThread<int, kMaxThreads> sum;
    b.reduce_groups<kGroup>(
        sum,
        [&](int t) {
          const int64_t plane = b.index() * kPlanes + t / kGroup;
          int mine = 0;
          if (plane >= planes) return mine;
          for (int64_t i = t % kGroup; i < mean.count; i += kGroup) mine += mean.from.whole(x[plane * mean.count + i]);
          return mine;
        },
        [](int v, int w) { return v + w; });
    b.threads([&](int t, device::NoShared&) {
      const int64_t plane = b.index() * kPlanes + t / kGroup;
      if (t % kGroup == 0 && plane < planes) y[plane] = mean(sum[t]);
    });
  }
};

// A thread makes a plane of values that are as many channels apart.
struct MeanColumns {
  const uint8_t* x;
  uint8_t* y;
  MeanOfBytes mean;
  device::Divider channels;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t channel;
    const int64_t image = channels(i, channel), step = channels.divisor();
    const uint8_t* const plane = x + image * mean.count * step + channel;
    int sum = 0;
    for (int64_t at = 0; at < mean.count; ++at) sum += mean.from.whole(plane[at * step]);
    y[i] = mean(sum);
  }
};

class QLinearGlobalAveragePool : public Op {
 public:
  explicit QLinearGlobalAveragePool(const NodeInfo& node)
      : layout_(node.get_int("channels_last", 0) != 0 ? Layout::channels_last : Layout::channels_first) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    require(x.shape.rank() >= 3, "the input has shape ", x.shape.str(), "; it needs batch, channels and a plane");
    Shape shape = channels_first(x.shape, layout_);
    const int64_t images = shape[0], channels = shape[1], plane = shape.count(2, shape.rank());
    for (int i = 2; i < shape.rank(); ++i) shape = shape.with(i, 1);
    require(plane > 0 || shape.count() == 0, "the input ", x.shape.str(), " has nothing to pool");
    const LinearBytes from = LinearBytes::of(context, x.type, 1, 2, "X"),
                      to = LinearBytes::of(context, x.type, 3, 4, "Y");
    const Tensor y = context.output(0, stored(shape, layout_));
    average_planes(context.stream(), x, from, images, channels, plane, layout_ == Layout::channels_last, y, to);
  }

 private:
  Layout layout_;
};

}  // namespace

void average_planes(StreamRef stream, const Tensor& x, const LinearBytes& from, int64_t images, int64_t channels,
                    int64_t plane, bool channels_last, const Tensor& y, const LinearBytes& to) {
  constexpr int64_t kMost = 1 << 23;  // sums of as many bytes fit 32 bits, also less a zero point
  require(plane < kMost, "planes of ", plane, " values are too large; ", kMost - 1, " are the most");
  const MeanOfBytes mean{from, to, plane};
  const int64_t planes = images * channels;
  if (planes == 0) return;
  if (channels_last && channels > 1) {
    device::for_each_index(
        stream, planes, MeanColumns{x.as<const uint8_t>(), y.as<uint8_t>(), mean, device::Divider(channels, planes)});
    return;
  }
  device::block_kernel<device::NoShared>(
      stream, {(planes + MeanPlanes::kPlanes - 1) / MeanPlanes::kPlanes, MeanPlanes::kThreads},
      MeanPlanes{x.as<const uint8_t>(), y.as<uint8_t>(), mean, planes});
}

std::vector<OpRow> qlinear_global_pool_rows() {
  const Types bytes{Type::i8, Type::u8}, floats{Type::f32};
  return {{.domain = kMicrosoft,
           .name = "QLinearGlobalAveragePool",
           .since = 1,
           .until = 1,
           .types = {in(0, bytes), in(1, floats), in(3, floats), out(0, bytes)},
           .make = make<QLinearGlobalAveragePool>}};
}

}  // namespace encore::ops
