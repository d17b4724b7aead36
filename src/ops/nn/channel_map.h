// y = f(x) with numbers that depend on the channel of [batch, channels, width].
#pragma once
#include <numeric>

#include "device/apart.h"
#include "device/divide.h"
#include "device/transform.h"

namespace encore::ops {

// How packs lie in rows: in one, in at most two, or in more.
enum class PacksLie { whole, broken, scattered };

// Packs go over the flat tensor, so that any width is coalesced; where a pack may hold several rows it looks up the
// channel of each. A thread's packs are `step` apart, which is a whole number of batches: their channels are the same.
// F has `auto of(int64_t channel)` and `apply(of, x)`, and reads x if kReads.
template <class T, class F, PacksLie kLie>
struct ChannelMap {
  static constexpr int kPack = device::pack_size<T>(), kAtOnce = 4;
  int64_t n, width, channels;
  const T* x;
  T* y;
  F f;
  device::Divider by_width, by_channels;
  bool aligned;
  int64_t step;  // in packs

  DEVICE_FN void operator()(int64_t pack) const {
    device::Pack<T, kPack> values[kAtOnce];
    if constexpr (F::kReads) {
      UNROLL for (int u = 0; u < kAtOnce; ++u) {
        const int64_t first = first_of(pack, u);
        if (first < n) values[u] = device::load_pack<kPack>(x + first, aligned, count_from(first));
      }
    }
    int64_t at, channel;
    by_channels(by_width(pack * kPack, at), channel);
    using Of = decltype(f.of(channel));
    const auto next = [&] { return f.of(channel = channel + 1 == channels ? 0 : channel + 1); };
    Of of[kPack];
    of[0] = f.of(channel);
    Of then = of[0];
    const int64_t left = width - at;
    if constexpr (kLie == PacksLie::broken)
      if (left < kPack) then = next();
    UNROLL for (int i = 1; i < kPack; ++i) {
      of[i] = kLie == PacksLie::broken && i >= left ? then : of[i - 1];
      if (kLie == PacksLie::scattered && ++at == width) of[i] = next(), at = 0;
    }
    UNROLL for (int u = 0; u < kAtOnce; ++u) {
      const int64_t first = first_of(pack, u);
      if (first >= n) continue;
      UNROLL for (int i = 0; i < kPack; ++i) values[u].at[i] = made(of[i], values[u].at[i]);
      device::store_pack(y + first, values[u], aligned, count_from(first));
    }
  }

 private:
  DEVICE_FN int64_t first_of(int64_t pack, int u) const { return (pack + u * step) * kPack; }
  DEVICE_FN int count_from(int64_t first) const { return n - first < kPack ? int(n - first) : kPack; }
  template <class Of>
  DEVICE_FN T made(const Of& of, T x) const {
    if constexpr (F::kReads)
      return T(f.apply(of, device::Compute<T>(x)));
    else
      return T(f.apply(of));
  }
};

// x may be y.
template <class T, class F>
void map_channels(device::StreamRef stream, const T* x, T* y, int64_t batch, int64_t channels, int64_t width,
                  const F& f) {
  constexpr int kPack = device::pack_size<T>();
  const int64_t n = batch * channels * width, packs = (n + kPack - 1) / kPack;
  if (n == 0) return;
  const bool aligned = device::is_pack_aligned<kPack>(y) && (!F::kReads || device::is_pack_aligned<kPack>(x));
  const int64_t period = channels * width / std::gcd(channels * width, int64_t(kPack));
  const int64_t step = device::packs_apart(stream, packs, period, ChannelMap<T, F, PacksLie::whole>::kAtOnce);
  const auto launch = [&]<PacksLie kLie> {
    device::for_each_index(stream, step,
                           ChannelMap<T, F, kLie>{n, width, channels, x, y, f, device::Divider(width, n),
                                                  device::Divider(channels, n), aligned, step});
  };
  if (width % kPack == 0) return launch.template operator()<PacksLie::whole>();
  if (width > kPack) return launch.template operator()<PacksLie::broken>();
  launch.template operator()<PacksLie::scattered>();
}

}  // namespace encore::ops
