#include "ops/nn/convolve_tiles.h"

#include <algorithm>
#include <climits>

#include "device/divide_small.h"
#include "device/memory.h"
#include "ops/dispatch.h"
#include "ops/matmul/tile_gemm_kernel.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

using device::BFloat16;
using device::Half;
using device::SmallDivider;

// What a window has of x: of each of its positions all channels. kNarrow: of a granule's positions kFilledChannels.
template <class T, bool kNarrow>
struct WindowRows {
  static constexpr int kGranule = int(sizeof(Granule) / sizeof(T));  // values
  // As MatrixRows'. `first`: where a window begins in its image, of which it may begin outside.
  template <int kCount, int kApart>
  struct Source {
    static constexpr int kRows = kCount, kDistance = kApart;
    int image[kCount], first[kCount][2];
    int channel, tap[2], values;
  };
  static constexpr int kNowhere = INT_MIN / 2;

  const T* x;
  SmallDivider by_image, by_line, by_channels, by_taps;  // of the result; of a window
  int in[2], taps[2], stride[2], dilation[2], before[2];
  bool in_pairs;  // of kNarrow: two neighbouring taps are a granule, and both inside or both outside
  int pitch;      // from one of x's positions to the next

  template <class Source>
  DEVICE_FN Source from(int row, int rows, int k, int end) const {
    Source source;
    source.values = end - k;
    source.tap[0] = by_taps(by_channels(k, source.channel), source.tap[1]);
    UNROLL for (int i = 0; i < Source::kRows; ++i) {
      const int own = row + i * Source::kDistance;
      int position, column;
      const int image = by_image(own < rows ? own : 0, position), line = by_line(position, column);
      source.image[i] = image * in[0] * in[1];
      source.first[i][0] = own < rows ? line * stride[0] - before[0] : kNowhere;
      source.first[i][1] = column * stride[1] - before[1];
    }
    return source;
  }
  template <class Source>
  DEVICE_FN void copy(Granule* to, const Source& from, int i) const {
    if constexpr (kNarrow) {
      const bool is_tap = from.values > 0 && from.tap[0] < taps[0];
      if (in_pairs) {
        const Place place = place_of(from, i, from.tap, is_tap);
        return device::copy_async_or_zeros(to, x + place.at, place.there);
      }
      int tap[2] = {from.tap[0], from.tap[1]};
      UNROLL for (int done = 0; done < kGranule; done += kFilledChannels) {
        const Place place = place_of(from, i, tap, from.values > 0 && tap[0] < taps[0]);
        device::copy_async_or_zeros<kFilledChannels * sizeof(T)>(reinterpret_cast<T*>(to) + done, x + place.at,
                                                                 place.there);
        if (++tap[1] == taps[1]) tap[1] = 0, ++tap[0];
      }
    } else {
      const Place place = place_of(from, i, from.tap, from.values > 0);
      device::copy_async_or_zeros(to, x + place.at, place.there);
    }
  }
  template <class Source>
  DEVICE_FN void step(Source& from, int values) const {
    from.values -= values;
    if constexpr (kNarrow) {
      from.tap[0] = by_taps(from.tap[0] * taps[1] + from.tap[1] + values / kFilledChannels, from.tap[1]);
    } else {
      from.channel += values;
      NO_UNROLL while (from.channel >= by_channels.divisor()) {
        from.channel -= by_channels.divisor();
        if (++from.tap[1] == taps[1]) from.tap[1] = 0, ++from.tap[0];
      }
    }
  }

 private:
  // Of a tap in row i's window; nowhere is zero.
  struct Place {
    int at;
    bool there;
  };
  template <class Source>
  DEVICE_FN Place place_of(const Source& from, int i, const int (&tap)[2], bool is_tap) const {
    const int line = from.first[i][0] + tap[0] * dilation[0], column = from.first[i][1] + tap[1] * dilation[1];
    const bool there = is_tap && unsigned(line) < unsigned(in[0]) && unsigned(column) < unsigned(in[1]);
    return {there ? (from.image[i] + line * in[1] + column) * pitch + from.channel : 0, there};
  }
};

// As in patches, whose windows are even and begin at even places.
bool is_in_pairs(const Window& w) {
  return w.dilation[2] == 1 && w.kernel[2] % 2 == 0 && w.stride[2] % 2 == 0 && w.before[2] % 2 == 0 && w.in[2] % 2 == 0;
}
int64_t positions_of(const ConvProblem& p) { return p.images * p.window.out_count(); }
bool fills_channels(const ConvProblem& p) { return p.in_channels <= kFilledChannels; }
int64_t depth_of(const ConvProblem& p) {
  return fills_channels(p) ? filled_depth(p.window.taps()) : p.in_channels * p.window.taps();
}

template <class T, bool kNarrow>
void run(StreamRef stream, const ConvProblem& p, const ConvData& data, const Epilogue& rest, TileGemmWay way) {
  const Window& w = p.window;
  WindowRows<T, kNarrow> rows{static_cast<const T*>(data.x), SmallDivider(int(w.out_count())), SmallDivider(w.out[2]),
                              SmallDivider(kNarrow ? kFilledChannels : int(p.in_channels)), SmallDivider(w.kernel[2])};
  for (int d = 0; d < 2; ++d) {
    rows.in[d] = w.in[1 + d], rows.taps[d] = w.kernel[1 + d], rows.stride[d] = w.stride[1 + d];
    rows.dilation[d] = w.dilation[1 + d], rows.before[d] = w.before[1 + d];
  }
  rows.in_pairs = is_in_pairs(w);
  rows.pitch = kNarrow ? kFilledChannels : int(x_pitch(p, data));
  TileProduct<T> product{};
  product.b = static_cast<const T*>(data.w);
  product.addend = static_cast<const T*>(rest.residual);
  product.bias = static_cast<const T*>(data.bias);
  product.c = static_cast<T*>(data.y);
  product.depth = int(depth_of(p));
  product.ldb = product.depth;
  product.columns = int(p.out_channels);
  product.ldc = product.columns;
  product.rows = int(positions_of(p));
  product.alpha = 1;
  product.beta = rest.residual ? 1 : 0;
  product.activation = rest.activation;
  product.constant_b = data.constant_w;
  launch_tile_gemm<T, true>(stream, product, rows, way);
}

// Microseconds of cuDNN's best on an H200. Of few channels it has no kernel on tensor cores.
double us_by_library(const ConvProblem& p) {
  const auto depth = double(p.in_channels * p.window.taps()), made = double(positions_of(p) * p.out_channels);
  if (fills_channels(p)) return p.type == Type::f32 ? 4 + depth * made / 8e6 : 3.2 + depth * made / 12.5e6;
  if (p.type == Type::f32) return 4.4 + 2.6e-3 * std::min(depth, 3600.0) + 1e-6 * made;
  return 4 + 1.7e-3 * depth + 1e-6 * made;
}

}  // namespace

size_t filled_bytes(const Tensor& w) {
  const int64_t values = checked_product(w.shape[0], filled_depth(w.shape.count(2, w.shape.rank())));
  return size_t(values) * device::size_bytes(w.type);
}
void fill_channels(StreamRef stream, const Tensor& w, void* into) {
  const int64_t outputs = w.shape[0], channels = w.shape[1], taps = w.shape.count(2, w.shape.rank());
  device::fill(stream, into, 0, filled_bytes(w));
  StridedCopy copy;
  copy.add(outputs, channels * taps, filled_depth(taps));
  copy.add(taps, 1, kFilledChannels);
  copy.add(channels, taps, 1);
  copy.run(stream, w.data, into, device::size_bytes(w.type));
}

bool suits_tiles(const ConvProblem& p, const ConvData& data, const void* residual) {
  constexpr int64_t kMost = INT_MAX / 4, kFarthest = 1 << 20;
  const Window& w = p.window;
  if (!has_tiles(p.type, p.tf32) || p.layout != Layout::channels_last || p.groups != 1) return false;
  if (w.in[0] != 1 || w.out[0] != 1 || w.kernel[0] != 1 || w.taps() == 1) return false;
  if (fills_channels(p) ? !data.is_filled : data.is_filled || p.in_channels % 8 != 0) return false;
  const int64_t pitch = fills_channels(p) ? kFilledChannels : x_pitch(p, data);
  if (data.x_pitch % 8 != 0) return false;
  if (p.out_channels % 8 != 0 || p.in_channels == 0 || p.out_channels == 0) return false;
  for (const int d : {1, 2})
    if (int64_t(w.kernel[d]) * w.dilation[d] > kFarthest || w.out[d] < 1 || w.in[d] < 1) return false;
  const auto fits = [](int64_t a, int64_t b, int64_t c) {
    int64_t product;
    return !__builtin_mul_overflow(a, b, &product) && !__builtin_mul_overflow(product, c, &product) && product <= kMost;
  };
  const int64_t in_channels = fills_channels(p) ? kFilledChannels : p.in_channels;
  if (p.images < 1 || !fits(p.images, w.in_count(), pitch) || !fits(p.images, w.out_count(), p.out_channels) ||
      !fits(in_channels, w.taps() + 1, p.out_channels))
    return false;
  for (const void* address : {data.x, data.w, data.bias, static_cast<const void*>(data.y), residual})
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
  return true;
}

TileGemmWay tile_convolution_way(const ConvProblem& p, const Activation& activation, const TileRoom& room) {
  return tiles_faster_than(us_by_library(p), {p.type, positions_of(p), p.out_channels, depth_of(p), true}, activation,
                           room);
}

void convolve_tiles(StreamRef stream, const ConvProblem& problem, const ConvData& data, const Epilogue& rest,
                    TileGemmWay way) {
  dispatch(TypeList<Half, BFloat16, float>{}, problem.type, [&]<class T>() {
    fills_channels(problem) ? run<T, true>(stream, problem, data, rest, way)
                            : run<T, false>(stream, problem, data, rest, way);
  });
}

}  // namespace encore::ops
