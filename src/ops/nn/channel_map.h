// y = f(x) with numbers that depend on the channel of [batch, channels, width].
#pragma once
#include "device/divide.h"
#include "device/transform.h"

namespace encore::ops {

// How packs lie in rows: in one, in at most two, or in more.
enum class PacksLie { whole, broken, scattered };

// Packs go over the flat tensor, so that any width is coalesced; where a pack may hold several rows it looks up the
// channel of each. F has `auto of(int64_t channel)` and `apply(of, x)`, and reads x if kReads.
template <class T, class F, PacksLie kLie>
struct ChannelMap {
  static constexpr int kPack = device::pack_size<T>();
  int64_t n, width, channels;
  const T* x;
  T* y;
  F f;
  device::Divider by_width, by_channels;
  bool aligned;

  DEVICE_FN void operator()(int64_t pack) const {
    const int64_t first = pack * kPack;
    const int count = n - first < kPack ? int(n - first) : kPack;
    device::Pack<T, kPack> values;
    if constexpr (F::kReads) values = device::load_pack<kPack>(x + first, aligned, count);
    int64_t at, channel;
    by_channels(by_width(first, at), channel);
    auto of = f.of(channel);
    const auto next = [&] { return f.of(channel = channel + 1 == channels ? 0 : channel + 1); };
    if constexpr (kLie == PacksLie::broken) {
      const int left = width - at < kPack ? int(width - at) : kPack;
      const auto then = left < count ? next() : of;
      UNROLL for (int i = 0; i < kPack; ++i) {
        if (i == left) of = then;
        values.at[i] = made(of, values.at[i]);
      }
    } else {
      UNROLL for (int i = 0; i < kPack; ++i) {
        if (kLie == PacksLie::scattered && at++ == width) of = next(), at = 1;
        values.at[i] = made(of, values.at[i]);
      }
    }
    device::store_pack(y + first, values, aligned, count);
  }

 private:
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
  const bool aligned = device::is_pack_aligned<kPack>(y) && (!F::kReads || device::is_pack_aligned<kPack>(x));
  const auto launch = [&]<PacksLie kLie> {
    device::for_each_index(stream, packs,
                           ChannelMap<T, F, kLie>{n, width, channels, x, y, f, device::Divider(width, n),
                                                  device::Divider(channels, n), aligned});
  };
  if (n == 0) return;
  if (width % kPack == 0) return launch.template operator()<PacksLie::whole>();
  if (width > kPack) return launch.template operator()<PacksLie::broken>();
  launch.template operator()<PacksLie::scattered>();
}

}  // namespace encore::ops
