// y = f(x) with numbers that depend on the channel of [batch, channels, width].
#pragma once
#include "device/divide.h"
#include "device/transform.h"

namespace encore::ops {

// Packs go over the flat tensor, so that any width is coalesced; where a pack may hold several rows (not kWhole) it
// looks up the channel anew at each boundary. F has `auto of(int64_t channel)` and `apply(of, x)`, and reads x if
// kReads.
template <class T, class F, bool kWhole>
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
    int64_t at, channel;
    by_channels(by_width(first, at), channel);
    auto of = f.of(channel);
    device::Pack<T, kPack> values;
    if constexpr (F::kReads) values = device::load_pack<kPack>(x + first, aligned, count);
    UNROLL for (int i = 0; i < kPack; ++i) {
      if (!kWhole && at == width) {
        at = 0;
        if (++channel == channels) channel = 0;
        of = f.of(channel);
      }
      if constexpr (F::kReads)
        values.at[i] = T(f.apply(of, device::Compute<T>(values.at[i])));
      else
        values.at[i] = T(f.apply(of));
      ++at;
    }
    device::store_pack(y + first, values, aligned, count);
  }
};

// x may be y.
template <class T, class F>
void map_channels(device::StreamRef stream, const T* x, T* y, int64_t batch, int64_t channels, int64_t width,
                  const F& f) {
  constexpr int kPack = device::pack_size<T>();
  const int64_t n = batch * channels * width, packs = (n + kPack - 1) / kPack;
  const bool aligned = device::is_pack_aligned<kPack>(y) && (!F::kReads || device::is_pack_aligned<kPack>(x));
  const auto launch = [&](auto whole) {
    device::for_each_index(
        stream, packs,
        ChannelMap<T, F, decltype(whole)::value>{n, width, channels, x, y, f, device::Divider(width, n),
                                                 device::Divider(channels, n), aligned});
  };
  if (n == 0) return;
  if (width % kPack == 0)
    launch(std::true_type{});
  else
    launch(std::false_type{});
}

}  // namespace encore::ops
