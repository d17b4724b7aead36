#include "ops/nn/batch_statistics.h"

#include <algorithm>
#include <cmath>

#include "device/divide.h"
#include "device/transform.h"
#include "ops/reduce/team.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Compute;
using device::NoShared;
using device::PerThread;

template <class C>
struct Moments {
  C mean, squares;  // the sum of squared distances from the mean
  C count;

  DEVICE_FN void join(const Moments& more) {
    if (more.count == 0) return;
    const C all = count + more.count, away = more.mean - mean, share = more.count / all;
    mean += away * share;
    squares += more.squares + away * away * share * count;
    count = all;
  }
};

// A block for each part of a channel, which is read once: a thread finds the mean of a few values, and the distances
// from it, while it has them.
template <class T, int kPack>
struct TakeMoments {
  using C = Compute<T>;
  static constexpr int kMaxThreads = 256, kBatch = kPack == 1 ? 8 : 4;
  const T* x;
  Moments<C>* parts;  // [channel, part]
  ChannelShape shape;
  int64_t packs, chunk;  // of a channel, and of a part
  device::Divider by_parts, by_width;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    int64_t part;
    const int64_t channel = by_parts(b.index(), part);
    const int64_t first = part * chunk, last = first + chunk < packs ? first + chunk : packs;
    const C count = C((last - first) * kPack);
    PerThread<Moments<C>, kMaxThreads> seen;
    const C sum = b.reduce(
        C(0),
        [&](int t) {
          seen[t] = collect(channel, first + t, last, b.size());
          return seen[t].mean * seen[t].count;
        },
        Plus());
    const C mean = sum / count;
    const C squares = b.reduce(
        C(0), [&](int t) { return seen[t].squares + seen[t].count * (seen[t].mean - mean) * (seen[t].mean - mean); },
        Plus());
    b.threads([&](int t, NoShared&) {
      if (t == 0) parts[b.index()] = {mean, squares, count};
    });
  }

 private:
  DEVICE_FN Moments<C> collect(int64_t channel, int64_t first, int64_t last, int step) const {
    Moments<C> all{};
    for (; first < last; first += kBatch * step) {
      device::Pack<T, kPack> values[kBatch];
      UNROLL for (int u = 0; u < kBatch; ++u) {
        if (first + u * step < last) values[u] = load(channel, first + u * step);
      }
      const auto sum = [&](auto term) {
        C total = 0;
        UNROLL for (int u = 0; u < kBatch; ++u) {
          if (first + u * step < last) UNROLL for (int j = 0; j < kPack; ++j) total += term(C(values[u].at[j]));
        }
        return total;
      };
      const int64_t left = (last - first + step - 1) / step;
      const C count = C(kPack * int(left < kBatch ? left : kBatch)), mean = sum([](C value) { return value; }) / count;
      all.join({mean, sum([&](C value) { return (value - mean) * (value - mean); }), count});
    }
    return all;
  }
  DEVICE_FN device::Pack<T, kPack> load(int64_t channel, int64_t i) const {
    int64_t column;
    const int64_t image = by_width(i, column);
    return device::load_pack<kPack>(x + (image * shape.channels + channel) * shape.width + column * kPack, true);
  }
};

// Joins the parts of each channel: a warp each.
template <class C>
struct JoinMoments {
  static constexpr int kMaxThreads = 256;
  const Moments<C>* parts;
  int64_t channels, splits, elements;
  C momentum, epsilon;
  BatchStatistics s;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    PerThread<Moments<C>, kMaxThreads> seen;
    PerThread<C, kMaxThreads> sum, squares;
    b.template reduce_groups<32>(
        sum,
        [&](int t) {
          seen[t] = {};
          const int64_t channel = Team<32>::index(b, t);
          for (int64_t part = t % 32; channel < channels && part < splits; part += 32)
            seen[t].join(parts[channel * splits + part]);
          return seen[t].mean * seen[t].count;
        },
        Plus());
    b.template reduce_groups<32>(
        squares,
        [&](int t) {
          const C away = seen[t].mean - sum[t] / C(elements);
          return seen[t].squares + seen[t].count * away * away;
        },
        Plus());
    b.threads([&](int t, NoShared&) {
      const int64_t channel = Team<32>::index(b, t);
      if (t % 32 == 0 && channel < channels) put(channel, sum[t] / C(elements), squares[t] / C(elements));
    });
  }

 private:
  DEVICE_FN void put(int64_t channel, C mean, C spread) const {
    s.mean.put(channel, mean);
    s.variance.put(channel, spread);
    if (s.running_mean.data) s.running_mean.put(channel, moved(s.given_mean.at<C>(channel), mean));
    if (s.running_variance.data) s.running_variance.put(channel, moved(s.given_variance.at<C>(channel), spread));
    s.saved_mean.put(channel, mean);
    s.saved_deviation.put(channel, C(1) / std::sqrt(spread + epsilon));
  }
  DEVICE_FN C moved(C given, C found) const { return given * momentum + found * (C(1) - momentum); }
};

}  // namespace

void take_statistics(Context& context, const Tensor& x, const ChannelShape& shape, float momentum, float epsilon,
                     const BatchStatistics& statistics) {
  if (shape.channels == 0) return;
  constexpr int64_t kBlocks = 1024, kLeast = 4096, kThreads = 256;  // the least elements that are worth a block
  const int64_t elements = checked_product(shape.batch, shape.width);
  const int64_t wanted = std::clamp<int64_t>(std::min(kBlocks / shape.channels, elements / kLeast), 1, 256);
  dispatch(FloatList{}, x.type, [&]<class T>() {
    using C = Compute<T>;
    constexpr int kWide = device::pack_size<T>();
    with_packs<kWide>(shape.width % kWide == 0 && device::is_pack_aligned<kWide>(x.as<const T>()), [&]<int kPack> {
      const int64_t packs = elements / kPack, chunk = std::max<int64_t>((packs + wanted - 1) / wanted, 1);
      const int64_t splits = std::max<int64_t>((packs + chunk - 1) / chunk, 1), blocks = shape.channels * splits;
      auto* const parts = static_cast<Moments<C>*>(context.scratch(size_t(blocks) * sizeof(Moments<C>)));
      device::block_kernel<NoShared>(
          context.stream(), {blocks, kThreads},
          TakeMoments<T, kPack>{x.as<const T>(), parts, shape, packs, chunk, device::Divider(splits, blocks),
                                device::Divider(std::max<int64_t>(shape.width / kPack, 1), packs)});
      device::block_kernel<NoShared>(
          context.stream(), {(shape.channels + 7) / 8, kThreads},
          JoinMoments<C>{parts, shape.channels, splits, elements, C(momentum), C(epsilon), statistics});
    });
  });
}

}  // namespace encore::ops
