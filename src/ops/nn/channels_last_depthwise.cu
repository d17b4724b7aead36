#include "ops/nn/channels_last_depthwise.h"

#include <algorithm>

#include "device/device.h"
#include "device/divide.h"
#include "device/divide_small.h"
#include "device/prefetch.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Compute;
using device::Divider;
using device::Pack;
using device::PerThread;
using device::SmallDivider;

// How pictures are cut. A block has a tile, `rows` lines of `runs` runs of outputs, of a slice of the channels.
struct Tiling {
  int rows, runs, run;  // `run` outputs side by side are a thread's
  int row_tiles, column_tiles, slices;
  int columns_in, rows_in;
  int pitch;  // columns from one line to the next: an odd number, so that two lines are in different banks

  int64_t blocks(int64_t images) const { return images * row_tiles * column_tiles * slices; }
};

// What a tile reads, with its rim, and its weights are brought to shared memory at once: there are too few threads in
// small pictures to wait for one line after the other. Two channels and a run of outputs are a thread's.
template <class T, int kKernel, int kStride, int kRun>
struct DepthwiseTile {
  static constexpr int kLanes = 16, kChannels = 2 * kLanes;
  static constexpr int kUnit = 16 / int(sizeof(T)), kUnits = kChannels / kUnit, kAtOnce = 8;
  static constexpr int kReach = (kRun - 1) * kStride + kKernel, kTaps = kKernel * kKernel;
  static constexpr int kMaxThreads = 512;
  static constexpr bool kBeginsEarly = true;
  using C = Compute<T>;
  using Unit = Pack<T, kUnit>;
  using Pair = Pack<T, 2>;
  struct Shared {
    alignas(16) C taps[kTaps][kChannels];
  };
  // Where a block is.
  struct Place {
    int64_t image;
    int row, column, channel, channels;  // the tile's first ones, and how many channels

    DEVICE_FN Place(const DepthwiseTile& f, int64_t block) {
      const Tiling& tiling = f.tiling;
      channel = int(block % tiling.slices) * kChannels;
      block /= tiling.slices;
      column = int(block % tiling.column_tiles) * tiling.runs * kRun;
      block /= tiling.column_tiles;
      row = int(block % tiling.row_tiles) * tiling.rows;
      image = block / tiling.row_tiles;
      channels = f.channels - channel < kChannels ? f.channels - channel : kChannels;
    }
  };

  const T *x, *weights, *bias;
  T* y;
  Window w;
  Activation activation;
  int channels;
  bool constant_weights;
  Tiling tiling;
  SmallDivider by_columns, by_rows;  // of what is read, and of outputs

  static int64_t bytes_of(const Tiling& tiling) {
    return int64_t(tiling.rows_in) * tiling.pitch * kChannels * int64_t(sizeof(T));
  }

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const Place place(*this, b.index());
    PerThread<Pair, kMaxThreads> base;
    b.threads([&](int t, Shared& s) {
      if (constant_weights)
        load_taps(s, place, t, b.size());
      else if (t < kTaps)
        device::prefetch(weights + int64_t(t) * channels + place.channel);
      b.wait();
      const int channel = t % kLanes * 2;
      base[t] = {};
      if (bias && channel < place.channels) base[t] = device::load_pack<2>(bias + place.channel + channel, true);
      load_values(b.template dynamic<T>(s), place, t, b.size());
      if (!constant_weights) load_taps(s, place, t, b.size());
    });
    b.threads([&](int t, Shared& s) { convolve(b.template dynamic<T>(s), s, place, base[t], t); });
  }

 private:
  // What lies beyond the picture is zero.
  DEVICE_FN void load_values(T* tile, const Place& place, int t, int threads) const {
    const int unit = t % kUnits, top = place.row * kStride - w.before[1], left = place.column * kStride - w.before[2];
    const int positions = tiling.rows_in * tiling.columns_in, at_once = threads / kUnits;
    const bool has_channels = unit * kUnit < place.channels;
    const T* const from = x + place.image * w.in[1] * w.in[2] * channels + place.channel + unit * kUnit;
    for (int first = t / kUnits; first < positions; first += kAtOnce * at_once) {
      Unit values[kAtOnce];
      int to[kAtOnce];
      UNROLL for (int k = 0; k < kAtOnce; ++k) {
        int column;
        const int row = by_columns(first + k * at_once, column);
        to[k] = row * tiling.pitch + column;
        values[k] = {};
        const bool inside = unsigned(top + row) < unsigned(w.in[1]) && unsigned(left + column) < unsigned(w.in[2]);
        if (inside && has_channels && first + k * at_once < positions)
          values[k] = device::load_pack<kUnit>(from + (int64_t(top + row) * w.in[2] + left + column) * channels, true);
      }
      UNROLL for (int k = 0; k < kAtOnce; ++k) if (first + k * at_once < positions)
          device::store_pack(tile + to[k] * kChannels + unit * kUnit, values[k], true);
    }
  }
  DEVICE_FN void load_taps(Shared& s, const Place& place, int t, int threads) const {
    const int channel = t % kLanes * 2;
    if (channel >= place.channels) return;
    const int at_once = threads / kLanes;
    for (int first = t / kLanes; first < kTaps; first += 4 * at_once) {
      Pair pairs[4];
      UNROLL for (int i = 0; i < 4; ++i) {
        const int tap = first + i * at_once;
        if (tap < kTaps)
          pairs[i] = device::load_pack<2>(weights + int64_t(tap) * channels + place.channel + channel, true);
      }
      UNROLL for (int i = 0; i < 4; ++i) {
        const int tap = first + i * at_once;
        if (tap >= kTaps) break;
        UNROLL for (int k = 0; k < 2; ++k) s.taps[tap][channel + k] = C(pairs[i].at[k]);
      }
    }
  }
  DEVICE_FN void convolve(const T* tile, const Shared& s, const Place& place, const Pair& base, int t) const {
    const int channel = t % kLanes * 2;
    int row;
    const int run = by_rows(t / kLanes, row), column = place.column + run * kRun;
    if (run >= tiling.runs || channel >= place.channels || place.row + row >= w.out[1]) return;
    C sums[kRun][2];
    UNROLL for (int o = 0; o < kRun; ++o) UNROLL for (int k = 0; k < 2; ++k) sums[o][k] = C(base.at[k]);
    const T* line = tile + (row * kStride * tiling.pitch + run * kRun * kStride) * kChannels + channel;
    NO_UNROLL for (int a = 0; a < kKernel; ++a, line += tiling.pitch * kChannels) {
      C taps[kKernel][2];
      UNROLL for (int tap = 0; tap < kKernel; ++tap) UNROLL for (int k = 0; k < 2; ++k) taps[tap][k] =
          s.taps[a * kKernel + tap][channel + k];
      UNROLL for (int j = 0; j < kReach; ++j) {
        const Pair value = device::load_pack<2>(line + j * kChannels, true);
        UNROLL for (int o = 0; o < kRun; ++o) {
          const int tap = j - o * kStride;
          if (tap < 0 || tap >= kKernel) continue;
          UNROLL for (int k = 0; k < 2; ++k) sums[o][k] += C(value.at[k]) * taps[tap][k];
        }
      }
    }
    const int64_t at = (place.image * w.out[1] + place.row + row) * w.out[2] + column;
    T* const to = y + at * channels + place.channel + channel;
    UNROLL for (int o = 0; o < kRun; ++o) {
      if (column + o >= w.out[2]) break;
      activation.template simple<T>(sums[o]);
      Pair pair;
      UNROLL for (int k = 0; k < 2; ++k) pair.at[k] = T(sums[o][k]);
      device::store_pack(to + int64_t(o) * channels, pair, true);
    }
  }
};

// A thread has a pack of channels of kRun outputs side by side, for pictures that have enough of them: then nothing is
// gained by shared memory. The weights are [taps, channels].
template <class T, int kKernel, int kStride>
struct DepthwiseRuns {
  static constexpr int kRun = 4, kPack = device::pack_size<T>();
  static constexpr int kReach = (kRun - 1) * kStride + kKernel;
  using C = Compute<T>;
  using Values = Pack<T, kPack>;
  const T *x, *weights, *bias;
  T* y;
  Window w;
  Activation activation;
  Divider by_packs, by_runs, by_rows;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack, run, row;
    const int64_t image = by_rows(by_runs(by_packs(i, pack), run), row), channel = pack * kPack;
    const int64_t channels = by_packs.divisor() * kPack;
    C sums[kRun][kPack];
    UNROLL for (int k = 0; k < kPack; ++k) {
      const C base = bias ? C(bias[channel + k]) : C(0);
      UNROLL for (int o = 0; o < kRun; ++o) sums[o][k] = base;
    }
    const int first = int(run) * kRun, left = first * kStride - w.before[2], top = int(row) * kStride - w.before[1];
    const T* corner = x + ((image * w.in[1] + top) * w.in[2] + left) * channels + channel;
    NO_UNROLL for (int a = 0; a < kKernel; ++a) {
      const bool inside = unsigned(top + a) < unsigned(w.in[1]);
      Values values[kReach];
      UNROLL for (int j = 0; j < kReach; ++j) {
        values[j] = {};
        if (inside && unsigned(left + j) < unsigned(w.in[2]))
          values[j] = device::load_pack<kPack>(corner + (int64_t(a) * w.in[2] + j) * channels, true);
      }
      Values taps[kKernel];
      UNROLL for (int b = 0; b < kKernel; ++b) taps[b] =
          device::load_pack<kPack>(weights + (a * kKernel + b) * channels + channel, true);
      UNROLL for (int j = 0; j < kReach; ++j) {  // value by value: all of them as C would take too many registers
        C value[kPack];
        UNROLL for (int k = 0; k < kPack; ++k) value[k] = C(values[j].at[k]);
        UNROLL for (int o = 0; o < kRun; ++o) {
          const int b = j - o * kStride;
          if (b < 0 || b >= kKernel) continue;
          UNROLL for (int k = 0; k < kPack; ++k) sums[o][k] += value[k] * C(taps[b].at[k]);
        }
      }
    }
    T* to = y + ((image * w.out[1] + row) * w.out[2] + first) * channels + channel;
    UNROLL for (int o = 0; o < kRun; ++o) {
      if (first + o >= w.out[2]) break;
      activation.template simple<T>(sums[o]);
      Values values;
      UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = T(sums[o][k]);
      device::store_pack(to + o * channels, values, true);
    }
  }
};

// Tiles of many lines read least of their rim; they are as large as leaves half of the multiprocessors busy, and every
// device has the memory for.
template <class Kernel>
Tiling tiling_of(const ConvProblem& p, int kernel, int run, int multiprocessors) {
  const Window& w = p.window;
  constexpr int kMostRuns = 8;
  constexpr int64_t kMostBytes = int64_t(48) << 10;
  const auto parts = [](int whole, int part) { return (whole + part - 1) / part; };
  Tiling tiling = {.run = run};
  const int runs = parts(w.out[2], run);
  tiling.column_tiles = parts(runs, kMostRuns);
  tiling.runs = parts(runs, tiling.column_tiles);
  tiling.slices = parts(int(p.out_channels), Kernel::kChannels);
  tiling.columns_in = (tiling.runs * run - 1) * w.stride[2] + kernel;
  tiling.pitch = tiling.columns_in | 1;
  for (tiling.rows = 8; tiling.rows >= 1; tiling.rows /= 2) {
    tiling.row_tiles = parts(w.out[1], tiling.rows);
    tiling.rows_in = (tiling.rows - 1) * w.stride[1] + kernel;
    const bool fits =
        tiling.rows * tiling.runs * Kernel::kLanes <= Kernel::kMaxThreads && Kernel::bytes_of(tiling) <= kMostBytes;
    if (tiling.rows == 1 || (fits && 2 * tiling.blocks(p.images) >= multiprocessors)) break;
  }
  return tiling;
}

template <class T, int kKernel, int kStride>
void launch_runs(Context& context, const ConvProblem& p, const ConvData& data, const Activation& activation) {
  using Kernel = DepthwiseRuns<T, kKernel, kStride>;
  const Window& w = p.window;
  const int64_t packs = p.out_channels / Kernel::kPack, runs = (w.out[2] + Kernel::kRun - 1) / Kernel::kRun;
  const int64_t n = p.images * w.out[1] * runs * packs;
  device::for_each_index(
      context.stream(), n,
      Kernel{static_cast<const T*>(data.x), static_cast<const T*>(data.w), static_cast<const T*>(data.bias),
             static_cast<T*>(data.y), w, activation, Divider(packs, n), Divider(runs, n), Divider(w.out[1], n)});
}

template <class T, int kKernel, int kStride, int kRun>
void launch_tiles(Context& context, const ConvProblem& p, const ConvData& data, const Activation& activation) {
  using Kernel = DepthwiseTile<T, kKernel, kStride, kRun>;
  const int multiprocessors = device::multiprocessors(context.stream().device());
  const Tiling tiling = tiling_of<Kernel>(p, kKernel, kRun, multiprocessors);
  // Tiles are for those that are there at once: a block does little while it waits for its memory.
  if (tiling.blocks(p.images) > 2 * multiprocessors)
    return launch_runs<T, kKernel, kStride>(context, p, data, activation);
  const int items = tiling.rows * tiling.runs * Kernel::kLanes, threads = std::max((items + 31) / 32 * 32, 64);
  device::block_kernel<typename Kernel::Shared>(
      context.stream(), {tiling.blocks(p.images), threads, Kernel::bytes_of(tiling)},
      Kernel{static_cast<const T*>(data.x), static_cast<const T*>(data.w), static_cast<const T*>(data.bias),
             static_cast<T*>(data.y), p.window, activation, int(p.out_channels), data.constant_w, tiling,
             SmallDivider(tiling.columns_in), SmallDivider(tiling.rows)});
}

template <class T, int kKernel, int kStride>
void launch(Context& context, const ConvProblem& p, const ConvData& data, const Activation& activation) {
  constexpr int kWide = 16;
  p.window.out[2] > kWide ? launch_tiles<T, kKernel, kStride, 4>(context, p, data, activation)
                          : launch_tiles<T, kKernel, kStride, 2>(context, p, data, activation);
}

}  // namespace

bool has_square_taps(const Window& w) {
  return w.in[0] == 1 && w.kernel[0] == 1 && w.out[0] == 1 && w.kernel[1] == w.kernel[2] &&
         (w.kernel[2] == 3 || w.kernel[2] == 5 || w.kernel[2] == 7) && w.stride[1] == w.stride[2] && w.stride[2] <= 2 &&
         w.dilation[1] == 1 && w.dilation[2] == 1;
}

bool convolve_depthwise_channels_last(Context& context, const ConvProblem& p, const ConvData& data,
                                      const Activation& activation) {
  if (p.layout != Layout::channels_last || p.in_channels != p.out_channels || p.out_channels > INT32_MAX) return false;
  if (!has_square_taps(p.window)) return false;
  if (p.type == Type::f64 || p.out_channels * int64_t(device::size_bytes(p.type)) % 16 != 0) return false;
  for (const void* address : {data.x, data.w, static_cast<const void*>(data.y)})
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
  dispatch(TypeList<float, Half, BFloat16>{}, p.type, [&]<class T>() {
    with_square_taps(p.window,
                     [&]<int kKernel, int kStride> { launch<T, kKernel, kStride>(context, p, data, activation); });
  });
  return true;
}

}  // namespace encore::ops
