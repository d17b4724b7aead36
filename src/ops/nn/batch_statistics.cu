#include "ops/nn/batch_statistics.h"

#include <algorithm>
#include <cmath>

#include "device/divide.h"
#include "device/launch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Compute;
using device::NoShared;

template <class C>
struct Moments {
  C mean, squares;  // the sum of squared distances from the mean
};

// A block for each part of a channel: its mean first, then the distances from it.
template <class T>
struct TakeMoments {
  using C = Compute<T>;
  static constexpr int kMaxThreads = 256;
  const T* x;
  Moments<C>* parts;  // [channel, part]
  ChannelShape shape;
  int64_t elements, chunk;  // of a channel, and of a part
  device::Divider by_parts, by_width;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    int64_t part;
    const int64_t channel = by_parts(b.index(), part);
    const int64_t first = part * chunk, last = first + chunk < elements ? first + chunk : elements;
    const auto sum = [&](auto term) {
      return b.reduce(
          C(0),
          [&](int t) {
            C all = 0;
            for (int64_t i = first + t; i < last; i += b.size()) all += term(at(channel, i));
            return all;
          },
          [](C a, C c) { return a + c; });
    };
    const C mean = sum([](C value) { return value; }) / C(last - first);
    const C squares = sum([&](C value) { return (value - mean) * (value - mean); });
    b.threads([&](int t, NoShared&) {
      if (t == 0) parts[b.index()] = {mean, squares};
    });
  }

 private:
  DEVICE_FN C at(int64_t channel, int64_t i) const {
    int64_t column;
    const int64_t image = by_width(i, column);
    return C(x[(image * shape.channels + channel) * shape.width + column]);
  }
};

// Joins the parts of each channel.
template <class C>
struct JoinMoments {
  const Moments<C>* parts;
  int64_t splits, elements, chunk;
  C momentum, epsilon;
  BatchStatistics s;

  DEVICE_FN void operator()(int64_t channel) const {
    Moments<C> all = parts[channel * splits];
    int64_t seen = chunk < elements ? chunk : elements;
    for (int64_t part = 1; part < splits; ++part) {
      const Moments<C> more = parts[channel * splits + part];
      const int64_t count = chunk < elements - seen ? chunk : elements - seen;
      const C away = more.mean - all.mean, share = C(count) / C(seen + count);
      all.mean += away * share;
      all.squares += more.squares + away * away * share * C(seen);
      seen += count;
    }
    const C spread = all.squares / C(elements);
    s.mean.put(channel, all.mean);
    s.variance.put(channel, spread);
    if (s.running_mean.data) s.running_mean.put(channel, moved(s.given_mean.at<C>(channel), all.mean));
    if (s.running_variance.data) s.running_variance.put(channel, moved(s.given_variance.at<C>(channel), spread));
    s.saved_mean.put(channel, all.mean);
    s.saved_deviation.put(channel, C(1) / std::sqrt(spread + epsilon));
  }

 private:
  DEVICE_FN C moved(C given, C found) const { return given * momentum + found * (C(1) - momentum); }
};

}  // namespace

void take_statistics(Context& context, const Tensor& x, const ChannelShape& shape, float momentum, float epsilon,
                     const BatchStatistics& statistics) {
  if (shape.channels == 0) return;
  constexpr int64_t kBlocks = 1024, kLeast = 4096, kThreads = 256;  // the least elements that are worth a block
  const int64_t elements = checked_product(shape.batch, shape.width);
  const int64_t wanted = std::clamp<int64_t>(std::min(kBlocks / shape.channels, elements / kLeast), 1, 64);
  const int64_t chunk = std::max<int64_t>((elements + wanted - 1) / wanted, 1);
  const int64_t splits = std::max<int64_t>((elements + chunk - 1) / chunk, 1), blocks = shape.channels * splits;
  dispatch(FloatList{}, x.type, [&]<class T>() {
    using C = Compute<T>;
    auto* const parts = static_cast<Moments<C>*>(context.scratch(size_t(blocks) * sizeof(Moments<C>)));
    device::block_kernel<NoShared>(
        context.stream(), {blocks, kThreads},
        TakeMoments<T>{x.as<const T>(), parts, shape, elements, chunk, device::Divider(splits, blocks),
                       device::Divider(std::max<int64_t>(shape.width, 1), elements)});
    device::for_each_index(context.stream(), shape.channels,
                           JoinMoments<C>{parts, splits, elements, chunk, C(momentum), C(epsilon), statistics});
  });
}

}  // namespace encore::ops
