// y = f(x) with numbers that depend on the channel of [batch, channels, width].
#pragma once
#include <algorithm>
#include <numeric>
#include <utility>

#include "device/apart.h"
#include "device/divide.h"
#include "device/divide_small.h"
#include "device/half.h"
#include "device/words.h"

namespace encore::ops {

// F has `auto of(int64_t channel)` and `apply(of, x)`, and reads x if kReads.
template <class T, class F, class Of>
DEVICE_FN T mapped(const F& f, Of of, [[maybe_unused]] T x) {
  if constexpr (F::kReads)
    return T(f.apply(of, device::Compute<T>(x)));
  else
    return T(f.apply(of));
}

// Packs go over the flat tensor, so that any width is coalesced, and each lies in two rows at most. A block takes
// neighbours, and finds what their channels have once for each row.
template <class T, class F, bool kBroken, int kAtOnce_>
struct ChannelMap {
  static constexpr int kPack = device::pack_size<T>(), kAtOnce = kAtOnce_, kThreads = 256, kMaxThreads = 1024;
  static constexpr int kMostWidth = 1 << 20;  // more than a block takes; of wider rows the last ones count
  using Of = decltype(std::declval<const F&>().of(0));
  struct Shared {
    Of of[kThreads * kAtOnce + 2];
  };
  struct Kept {
    device::WordsOf<T, kPack> at[kAtOnce];
  };

  int64_t n;
  const T* x;
  T* y;
  F f;
  device::Divider by_width, by_channels;
  device::SmallDivider in_rows;
  bool aligned;
  int packs;  // of a thread

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    const int count = packs * kThreads * kPack;
    const int64_t begin = b.index() * count, left = n - begin;
    const int here = left < count ? int(left) : count;
    int64_t past;
    const int64_t first_row = by_width(begin, past), over = by_width.divisor() - in_rows.divisor();
    const int before = past < over ? 0 : int(past - over);  // of the first row, as far as it counts
    const T* const from = x + (F::kReads ? begin : 0);
    T* const to = y + begin;
    device::PerThread<Kept, kThreads> kept;
    b.threads([&](int t, Shared& s) {
      if constexpr (F::kReads) {
        UNROLL for (int u = 0; u < kAtOnce; ++u) {
          if (is_whole(place(t, u), here)) kept[t].at[u] = device::load_words<kPack>(from + place(t, u));
        }
      }
      int rest;
      const int rows = in_rows(before + here - 1, rest) + 1;
      NO_UNROLL for (int row = t; row < rows; row += kThreads) {
        int64_t channel;
        by_channels(first_row + row, channel);
        s.of[row] = f.of(channel);
      }
    });
    b.threads([&](int t, Shared& s) {
      UNROLL for (int u = 0; u < kAtOnce; ++u) {
        const int first = place(t, u);
        if (first >= here) break;
        int at;
        const int row = in_rows(before + first, at), rest = in_rows.divisor() - at;
        const Of of = s.of[row];
        if (is_whole(first, here)) {
          Of then = of;
          if (kBroken && rest < kPack) then = s.of[row + 1];
          auto made = device::pack_of<T>(kept[t].at[u]);
          UNROLL for (int i = 0; i < kPack; ++i) {
            made.at[i] = kBroken && i >= rest ? mapped(f, then, made.at[i]) : mapped(f, of, made.at[i]);
          }
          device::store_pack(to + first, made, true);
        } else {
          NO_UNROLL for (int i = first; i < first + kPack && i < here; ++i) {
            to[i] = mapped(f, s.of[row + (i - first >= rest)], F::kReads ? from[i] : T());
          }
        }
      }
    });
  }

 private:
  DEVICE_FN static int place(int t, int u) { return (u * kThreads + t) * kPack; }
  DEVICE_FN bool is_whole(int first, int here) const { return aligned && first + kPack <= here; }
};

// Packs that may hold more rows: of each value the channel is looked up. A thread's packs are `step` apart, which is a
// whole number of batches: their channels are the same.
template <class T, class F>
struct ShortChannelMap {
  static constexpr int kPack = device::pack_size<T>(), kAtOnce = 4;
  using Of = decltype(std::declval<const F&>().of(0));
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
    Of of[kPack];
    of[0] = f.of(channel);
    UNROLL for (int i = 1; i < kPack; ++i) {
      of[i] = of[i - 1];
      if (++at == width) {
        at = 0;
        of[i] = f.of(channel = channel + 1 == channels ? 0 : channel + 1);
      }
    }
    UNROLL for (int u = 0; u < kAtOnce; ++u) {
      const int64_t first = first_of(pack, u);
      if (first >= n) continue;
      UNROLL for (int i = 0; i < kPack; ++i) values[u].at[i] = mapped(f, of[i], values[u].at[i]);
      device::store_pack(y + first, values[u], aligned, count_from(first));
    }
  }

 private:
  DEVICE_FN int64_t first_of(int64_t pack, int u) const { return (pack + u * step) * kPack; }
  DEVICE_FN int count_from(int64_t first) const { return n - first < kPack ? int(n - first) : kPack; }
};

// Launches ChannelMap of rows that have a pack at least.
template <bool kBroken, int kAtOnce, class T, class F>
void map_rows(device::StreamRef stream, const T* x, T* y, int64_t rows, int64_t channels, int64_t width, const F& f) {
  using Kernel = ChannelMap<T, F, kBroken, kAtOnce>;
  constexpr int kPack = Kernel::kPack, kOfBlock = kPack * Kernel::kThreads;
  const bool aligned = device::is_pack_aligned<kPack>(y) && (!F::kReads || device::is_pack_aligned<kPack>(x));
  const int64_t n = rows * width, blocks = (n + kOfBlock - 1) / kOfBlock;
  const int64_t plenty = 16 * int64_t(device::multiprocessors(stream.device()));
  const int packs = int(std::clamp<int64_t>(blocks / plenty, 1, kAtOnce));
  device::block_kernel<typename Kernel::Shared>(
      stream, {(blocks + packs - 1) / packs, Kernel::kThreads},
      Kernel{n, x, y, f, device::Divider(width, n), device::Divider(channels, n),
             device::SmallDivider(int(std::min<int64_t>(width, Kernel::kMostWidth))), aligned, packs});
}

// x may be y.
template <class T, class F>
void map_channels(device::StreamRef stream, const T* x, T* y, int64_t batch, int64_t channels, int64_t width,
                  const F& f) {
  constexpr int kPack = device::pack_size<T>();
  const int64_t n = batch * channels * width;
  if (n == 0) return;
  if (width % kPack == 0) return map_rows<false, 1>(stream, x, y, batch * channels, channels, width, f);
  if (width > kPack) return map_rows<true, 1>(stream, x, y, batch * channels, channels, width, f);
  using Kernel = ShortChannelMap<T, F>;
  const bool aligned = device::is_pack_aligned<kPack>(y) && (!F::kReads || device::is_pack_aligned<kPack>(x));
  const int64_t packs = (n + kPack - 1) / kPack;
  const int64_t period = channels * width / std::gcd(channels * width, int64_t(kPack));
  const int64_t step = device::packs_apart(stream, packs, period, Kernel::kAtOnce);
  device::for_each_index(
      stream, step,
      Kernel{n, width, channels, x, y, f, device::Divider(width, n), device::Divider(channels, n), aligned, step});
}

}  // namespace encore::ops
