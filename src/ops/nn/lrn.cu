// LRN: each value over a power of the squares of its neighbours' in the channels beside its own.
#include <algorithm>
#include <cmath>

#include "device/divide.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/nn/window.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;

template <class T, int kPack>
struct NormalizeAcrossChannels {
  using C = Compute<T>;
  const T* x;
  T* y;
  int64_t channels, step;  // from a value to that of the next channel
  int before, after;       // channels beside its own
  C share, beta, bias;     // share: alpha for each of the channels
  device::Divider by_step, by_channels;

  DEVICE_FN void operator()(int64_t pack) const {
    const int64_t i = pack * kPack;
    int64_t rest, channel;
    by_channels(by_step(i, rest), channel);
    const int64_t low = channel < before ? -channel : -before;
    const int64_t high = channel + after < channels ? after : channels - 1 - channel;
    C squares[kPack] = {};
    for (int64_t c = low; c <= high; ++c) {
      const auto values = device::load_pack<kPack>(x + i + c * step, true);
      UNROLL for (int j = 0; j < kPack; ++j) squares[j] += C(values.at[j]) * C(values.at[j]);
    }
    const auto own = device::load_pack<kPack>(x + i, true);
    device::Pack<T, kPack> out;
    UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = T(C(own.at[j]) * std::pow(bias + share * squares[j], -beta));
    device::store_pack(y + i, out, true);
  }
};

class LocalResponseNormalization : public Op {
 public:
  explicit LocalResponseNormalization(const NodeInfo& node)
      : layout_(layout_of(node)),
        size_(node.get_int("size", 0)),
        alpha_(node.get_float("alpha", 1e-4f)),
        beta_(node.get_float("beta", 0.75f)),
        bias_(node.get_float("bias", 1)) {
    require(size_ >= 1, "size is ", size_, "; it must be at least 1");
    const auto x = node.input_dims(0);
    require(!x || x->size() >= 2, "X has rank ", x ? x->size() : 0, "; it needs batch and channels");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank();
    require(rank >= 2, "X has shape ", x.shape.str(), "; it needs batch and channels");
    const Tensor y = context.output(0, x.shape);
    const int64_t n = y.count();
    if (n == 0) return;
    const bool last = layout_ == Layout::channels_last;
    const int64_t channels = last ? x.shape.back() : x.shape[1], step = last ? 1 : x.shape.count(2, rank);
    // No further than there are channels; of an even size, one more after than before.
    const int64_t before = std::min((size_ - 1) / 2, channels), after = std::min(size_ / 2, channels);
    dispatch(FloatList{}, x.type, [&]<class T>() {
      using C = Compute<T>;
      const auto launch = [&]<int kPack>() {
        device::for_each_index(
            context.stream(), n / kPack,
            NormalizeAcrossChannels<T, kPack>{x.as<const T>(), y.as<T>(), channels, step, int(before), int(after),
                                              C(alpha_) / C(size_), C(beta_), C(bias_), device::Divider(step, n),
                                              device::Divider(channels, n)});
      };
      constexpr int kWide = device::pack_size<T>();
      if (step % kWide == 0 && device::is_pack_aligned<kWide>(x.as<const T>()) &&
          device::is_pack_aligned<kWide>(y.as<T>()))
        launch.template operator()<kWide>();
      else
        launch.template operator()<1>();
    });
  }

 private:
  Layout layout_;
  int64_t size_;
  float alpha_, beta_, bias_;
};

}  // namespace

std::vector<OpRow> lrn_rows() {
  std::vector<OpRow> rows;
  for (const auto& [domain, types] : {std::pair{kOnnx, kFloats}, {kChannelsLast, kChannelsLastFloats}})
    rows.push_back({.domain = domain,
                    .name = "LRN",
                    .since = 1,
                    .types = {in(0, types)},
                    .make = make<LocalResponseNormalization>});
  return rows;
}

}  // namespace encore::ops
