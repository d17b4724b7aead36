#include "ops/nn/channels_last_depthwise.h"

#include <algorithm>
#include <initializer_list>

#include "device/divide_small.h"
#include "device/words.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Compute;
using device::NoShared;
using device::Pack;
using device::SmallDivider;

// How pictures are cut. A block has a tile, `rows` lines of `runs` runs of outputs, of a slice of the channels, `lanes`
// packs.
struct Tiling {
  int rows, runs, lanes;
  int row_tiles, column_tiles, slices;

  int64_t blocks(int64_t images) const { return images * row_tiles * column_tiles * slices; }
  int threads() const { return (rows * runs * lanes + 31) / 32 * 32; }
};

// A thread has a pack of channels, kBytes of them, of kRun outputs side by side. It asks for kRows rows of its window
// at once: for all of them where registers suffice, since small pictures have few threads to keep memory busy. The rims
// of its neighbours' windows are in the first cache. The weights are [taps, channels].
template <class T, int kKernel, int kStride, int kBytes, int kEachRun>
struct DepthwiseTile {
  using Type = T;
  static constexpr int kRun = kEachRun;
  static constexpr int kPack = kBytes / int(sizeof(T)), kReach = (kRun - 1) * kStride + kKernel;
  static constexpr int kMostWords = 112, kWords = kKernel * (kReach + kKernel) * kBytes / 4;
  static constexpr int kRows = kWords <= kMostWords ? kKernel : 1;
  static constexpr int kTileThreads = kBytes == 4 ? 128 : 256;
  // Of the largest windows, whose threads want most registers, three blocks are there at once.
  static constexpr int kMaxThreads = kRows == 7 ? 3 * kTileThreads : kTileThreads;
  static constexpr bool kBeginsEarly = true;
  using C = Compute<T>;
  using Values = Pack<T, kPack>;
  using Words = device::WordsOf<T, kPack>;

  const T *x, *weights, *bias, *residual;
  T* y;
  Window w;
  Activation activation;
  int channels;
  int64_t image_step;  // of x
  uint32_t line_bytes, column_bytes;
  bool constant_weights;
  SmallDivider by_slices, by_column_tiles, by_row_tiles;  // of blocks
  SmallDivider by_lanes, by_runs;                         // of threads
  int rows;                                               // of a tile

  // Where a thread's outputs begin.
  struct Place {
    int64_t image;
    int row, column, channel;
    bool exists;

    DEVICE_FN Place(const DepthwiseTile& f, int block, int t) {
      int slice, tile_column, tile_row, lane, run;
      image = f.by_row_tiles(f.by_column_tiles(f.by_slices(block, slice), tile_column), tile_row);
      const int line = f.by_runs(f.by_lanes(t, lane), run);
      row = tile_row * f.rows + line;
      column = (tile_column * f.by_runs.divisor() + run) * kRun;
      channel = (slice * f.by_lanes.divisor() + lane) * kPack;
      exists = line < f.rows && row < f.w.out[1] && column < f.w.out[2] && channel < f.channels;
    }
  };

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    b.threads([&](int t, NoShared&) {
      const Place place(*this, int(b.index()), t);
      if (!place.exists) return b.wait();
      Words taps[kRows][kKernel];
      const T* tap = weights + place.channel;
      if (!constant_weights) b.wait();
      if (kRows == kKernel) load_taps(taps, tap);
      const int top = place.row * kStride - w.before[1], left = place.column * kStride - w.before[2];
      const Neighbours<kReach> columns(left, w.in[2], column_bytes);
      Neighbours<kRows> lines(top, w.in[1], line_bytes);
      const char* const image = reinterpret_cast<const char*>(x + place.image * image_step + place.channel);
      b.wait();
      const Words base = device::load_words<kPack>((bias ? bias : weights) + place.channel);
      C sums[kRun * kPack];
      NO_UNROLL for (int a = 0; a < kKernel; a += kRows) {
        if (a != 0) lines = Neighbours<kRows>(top + a, w.in[1], line_bytes);
        Words values[kRows][kReach];
        UNROLL for (int r = 0; r < kRows; ++r) UNROLL for (int j = 0; j < kReach; ++j) values[r][j] =
            device::load_words<kPack>(reinterpret_cast<const T*>(image + (lines.bytes[r] + columns.bytes[j])));
        if (kRows < kKernel) load_taps(taps, tap);
        UNROLL for (int i = 0; i < kRun * kPack; ++i) {
          if (a == 0) sums[i] = bias ? value_of(base, i % kPack) : C(0);
        }
        UNROLL for (int r = 0; r < kRows; ++r) {
          UNROLL for (int j = 0; j < kReach; ++j) {
            UNROLL for (uint32_t& word : values[r][j].at) word &= lines.masks[r] & columns.masks[j];
          }
          add(sums, values[r], taps[r]);
        }
        tap += int64_t(kRows * kKernel) * channels;
      }
      store(sums, place);
    });
  }

 private:
  DEVICE_FN static C value_of(const Words& words, int k) { return C(device::pack_of<T>(words).at[k]); }
  DEVICE_FN void load_taps(Words (&taps)[kRows][kKernel], const T* from) const {
    UNROLL for (int r = 0; r < kRows; ++r) UNROLL for (int k = 0; k < kKernel; ++k) {
      taps[r][k] = device::load_words<kPack>(from);
      from += channels;
    }
  }
  DEVICE_FN static void add(C (&sums)[kRun * kPack], const Words (&values)[kReach], const Words (&taps)[kKernel]) {
    UNROLL for (int j = 0; j < kReach; ++j) {  // value by value: all of them as C would take too many registers
      UNROLL for (int o = 0; o < kRun; ++o) {
        const int tap = j - o * kStride;
        if (tap < 0 || tap >= kKernel) continue;
        UNROLL for (int k = 0; k < kPack; ++k) sums[o * kPack + k] += value_of(values[j], k) * value_of(taps[tap], k);
      }
    }
  }
  DEVICE_FN void store(C (&sums)[kRun * kPack], const Place& place) const {
    const int64_t at = (place.image * w.out[1] + place.row) * w.out[2] + place.column;
    const int64_t first = at * channels + place.channel;
    const int most = w.out[2] - 1 - place.column;
    if (residual) {
      Words more[kRun];
      UNROLL for (int o = 0; o < kRun; ++o) more[o] =
          device::load_words<kPack>(residual + first + int64_t(o < most ? o : most) * channels);
      UNROLL for (int i = 0; i < kRun * kPack; ++i) sums[i] += value_of(more[i / kPack], i % kPack);
    }
    activation.template simple<T>(sums);
    UNROLL for (int o = 0; o < kRun; ++o) {
      if (o > most) break;
      Values values;
      UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = T(sums[o * kPack + k]);
      device::store_pack(y + first + int64_t(o) * channels, values, true);
    }
  }
};

// Squares read least of their rim; they are as large as leaves every multiprocessor one.
template <class Kernel>
Tiling tiling_of(const ConvProblem& p, int multiprocessors) {
  constexpr int kMostRuns = 4, kMostLanes = 16;
  const Window& w = p.window;
  const auto parts = [](int whole, int part) { return (whole + part - 1) / part; };
  const int runs = parts(w.out[2], Kernel::kRun), packs = int(p.out_channels) / Kernel::kPack;
  Tiling tiling = {};
  tiling.column_tiles = parts(runs, kMostRuns);
  tiling.runs = parts(runs, tiling.column_tiles);
  tiling.slices = parts(packs, kMostLanes);
  tiling.lanes = parts(packs, tiling.slices);
  for (int rows = 8; rows >= 1; rows /= 2) {
    tiling.row_tiles = parts(w.out[1], rows);
    tiling.rows = parts(w.out[1], tiling.row_tiles);
    if (tiling.threads() <= Kernel::kTileThreads && tiling.blocks(p.images) >= multiprocessors) break;
  }
  return tiling;
}

template <class Kernel>
bool launch_tiles(StreamRef stream, const ConvProblem& p, const ConvData& data, const Epilogue& rest,
                  int64_t most_threads) {
  using T = typename Kernel::Type;
  const Tiling tiling = tiling_of<Kernel>(p, device::multiprocessors(stream.device()));
  const int64_t blocks = tiling.blocks(p.images);
  if (blocks > most_threads / tiling.threads()) return false;
  const int64_t pitch = x_pitch(p, data), pixel = pitch * int64_t(sizeof(T));
  const auto typed = [](const void* at) { return static_cast<const T*>(at); };
  device::block_kernel<NoShared>(
      stream, {blocks, tiling.threads()},
      Kernel{typed(data.x), typed(data.w), typed(data.bias), typed(rest.residual), static_cast<T*>(data.y), p.window,
             rest.activation, int(p.out_channels), p.window.in_count() * pitch, uint32_t(p.window.in[2] * pixel),
             uint32_t(pixel), data.constant_w, SmallDivider(tiling.slices), SmallDivider(tiling.column_tiles),
             SmallDivider(tiling.row_tiles), SmallDivider(tiling.lanes), SmallDivider(tiling.runs), tiling.rows});
  return true;
}

template <class T, int kKernel, int kStride>
bool launch_tiles(StreamRef stream, const ConvProblem& p, const ConvData& data, const Epilogue& rest) {
  const bool wide = are_packs(p, data, rest, 8);
  const int64_t most_threads = wide ? threads_at_once(stream) : INT32_MAX;
  return launch_tiles<DepthwiseTile<T, kKernel, kStride, 4, 2>>(stream, p, data, rest, most_threads) ||
         (wide && launch_tiles<DepthwiseTile<T, kKernel, kStride, 8, 4>>(stream, p, data, rest, INT32_MAX));
}

}  // namespace

bool are_packs(const ConvProblem& p, const ConvData& data, const Epilogue& rest, int bytes) {
  for (const int64_t apart : {p.out_channels, data.x_pitch})
    if (apart * int64_t(device::size_bytes(p.type)) % bytes != 0) return false;
  return std::ranges::all_of(std::initializer_list<const void*>{data.x, data.w, data.bias, data.y, rest.residual},
                             [&](const void* at) { return reinterpret_cast<uintptr_t>(at) % uintptr_t(bytes) == 0; });
}

bool reads_parts_depthwise(const ConvProblem& p, const ConvData& data, const Epilogue& rest) {
  constexpr int64_t kMost = int64_t(1) << 30;
  const Window& w = p.window;
  return p.layout == Layout::channels_last && p.type != Type::f64 && is_depthwise(p) &&
         p.images * std::max(w.in_count(), w.out_count()) * std::max(p.out_channels, x_pitch(p, data)) < kMost &&
         w.taps() * p.out_channels < kMost / 8 && w.in_count() > 0 && are_packs(p, data, rest, 4);
}

bool convolve_depthwise_channels_last(StreamRef stream, const ConvProblem& p, const ConvData& data,
                                      const Epilogue& rest) {
  const Window& w = p.window;
  const auto size = int64_t(device::size_bytes(p.type));
  if (p.layout != Layout::channels_last || p.type == Type::f64) return false;
  const int64_t widest = std::max(p.out_channels, data.x_pitch);
  if (widest > INT32_MAX / 2 || w.in_count() == 0 || w.in_count() * widest > int64_t(UINT32_MAX) / size) return false;
  if (!are_packs(p, data, rest, 4)) return false;
  if (!has_square_taps(w) || p.in_channels != p.out_channels) return convolve_depthwise_packs(stream, p, data, rest);
  bool launched = false;
  dispatch(TypeList<float, Half, BFloat16>{}, p.type, [&]<class T>() {
    with_square_taps(
        w, [&]<int kKernel, int kStride> { launched = launch_tiles<T, kKernel, kStride>(stream, p, data, rest); });
  });
  return launched;
}

}  // namespace encore::ops
