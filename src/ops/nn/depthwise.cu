#include "device/device.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/nn/channels_last_depthwise.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;

// Square kernels over pictures. A thread has kDown lines of kAcross outputs and reads each value once for all that need
// it. Many lines read least; one line makes for more threads, which is what small pictures lack.
template <class T, int kKernel, int kStride, int kDown>
struct DepthwiseSquare {
  static constexpr int kAcross = 4, kBefore = kKernel / 2;
  static constexpr int kReach = (kAcross - 1) * kStride + kKernel, kLines = (kDown - 1) * kStride + kKernel;
  static constexpr int kAtOnce =
      40 / kReach < kLines ? 40 / kReach : kLines;  // lines, all asked for before any is used
  using C = Compute<T>;
  const T *x, *weights, *bias, *residual;
  T* y;
  Window w;
  Activation activation;
  Divider by_groups, by_runs, by_channels, by_multiplier;
  bool wide_in, wide_out;  // kAcross neighbours can be moved at once
  DEVICE_FN void operator()(int64_t i) const {
    int64_t group, run, channel, ignored;
    const int64_t plane = by_runs(by_groups(i, group), run), image = by_channels(plane, channel);
    const int64_t in_channel = by_multiplier(channel, ignored);
    const T* own = weights + channel * (kKernel * kKernel);
    C taps[kKernel][kKernel];
    UNROLL for (int a = 0; a < kKernel; ++a) UNROLL for (int b = 0; b < kKernel; ++b) taps[a][b] =
        C(own[a * kKernel + b]);
    C sums[kDown][kAcross];
    const C base = bias ? C(bias[channel]) : C(0);
    UNROLL for (int o = 0; o < kDown; ++o) UNROLL for (int p = 0; p < kAcross; ++p) sums[o][p] = base;

    const int column = int(group) * kAcross, row = int(run) * kDown;
    const T* from = x + (image * in_channels() + in_channel) * w.in_count();
    const int left = column * kStride - w.before[2], top = row * kStride - w.before[1];
    if (wide_in)
      add<true>(sums, taps, from, left, top);
    else
      add<false>(sums, taps, from, left, top);

    const int64_t to = plane * w.out_count() + int64_t(row) * w.out[2] + column;
    const int count = w.out[2] - column < kAcross ? w.out[2] - column : kAcross;
    UNROLL for (int o = 0; o < kDown; ++o) {
      if (row + o >= w.out[1]) break;
      const int64_t line = to + int64_t(o) * w.out[2];
      if (residual) {
        const auto more = device::load_pack<kAcross>(residual + line, wide_out, count);
        UNROLL for (int p = 0; p < kAcross; ++p) sums[o][p] += C(more.at[p]);
      }
      activation.template simple<T>(sums[o]);
      device::Pack<T, kAcross> out;
      UNROLL for (int p = 0; p < kAcross; ++p) out.at[p] = T(sums[o][p]);
      device::store_pack(y + line, out, wide_out, count);
    }
  }

 private:
  DEVICE_FN int64_t in_channels() const {
    int64_t ignored;
    return by_multiplier(by_channels.divisor(), ignored);
  }
  template <bool kWide>
  DEVICE_FN void add(C (&sums)[kDown][kAcross], const C (&taps)[kKernel][kKernel], const T* from, int left,
                     int top) const {
    UNROLL for (int first = 0; first < kLines; first += kAtOnce) {
      T lines[kAtOnce][kReach];
      UNROLL for (int l = 0; l < kAtOnce; ++l) {
        if (first + l >= kLines) break;
        const int row = top + first + l;
        load_line<kWide, 0>(lines[l], from + int64_t(row) * w.in[2] + left, unsigned(row) < unsigned(w.in[1]), left);
      }
      UNROLL for (int l = 0; l < kAtOnce; ++l) UNROLL for (int o = 0; o < kDown; ++o) {
        const int a = first + l - o * kStride;
        if (first + l >= kLines || a < 0 || a >= kKernel) continue;
        UNROLL for (int b = 0; b < kKernel; ++b) UNROLL for (int p = 0; p < kAcross; ++p) sums[o][p] +=
            C(lines[l][p * kStride + b]) * taps[a][b];
      }
    }
  }
  // What lies beyond the picture is zero. If `kWide`, columns that are multiples of kAcross are aligned.
  template <bool kWide, int kFrom>
  DEVICE_FN void load_line(T (&line)[kReach], const T* from, bool inside, int left) const {
    if constexpr (kFrom < kReach) {
      constexpr int kColumn = kFrom - kBefore + kAcross, kLeft = kReach - kFrom;
      constexpr int kUnit = !kWide ? 1 : kColumn % 4 == 0 && kLeft >= 4 ? 4 : kColumn % 2 == 0 && kLeft >= 2 ? 2 : 1;
      device::Pack<T, kUnit> unit = {};
      if (inside && unsigned(left + kFrom) < unsigned(w.in[2])) unit = device::load_pack<kUnit>(from + kFrom, true);
      UNROLL for (int j = 0; j < kUnit; ++j) line[kFrom + j] = unit.at[j];
      load_line<kWide, kFrom + kUnit>(line, from, inside, left);
    }
  }
};

// Any window and layout; one output a thread.
template <class T>
struct Depthwise {
  const T *x, *weights, *bias, *residual;
  T* y;
  Window w;
  Activation activation;
  Elements elements;
  Planes planes, taps;
  Divider by_multiplier;
  DEVICE_FN void operator()(int64_t i) const {
    using C = Compute<T>;
    int at[kSpatial];
    int64_t channel, ignored;
    const int64_t image = elements(i, channel, at);
    const T* from = x + planes(image, by_multiplier(channel, ignored));
    const T* tap = weights + taps(0, channel);
    C sum = bias ? C(bias[channel]) : C(0);
    const int z0 = at[0] * w.stride[0] - w.before[0], y0 = at[1] * w.stride[1] - w.before[1];
    const int x0 = at[2] * w.stride[2] - w.before[2];
    for (int a = 0; a < w.kernel[0]; ++a) {
      const int z = z0 + a * w.dilation[0];
      for (int b = 0; b < w.kernel[1]; ++b, tap += w.kernel[2] * taps.step) {
        const int row = y0 + b * w.dilation[1];
        if (unsigned(z) >= unsigned(w.in[0]) || unsigned(row) >= unsigned(w.in[1])) continue;
        const T* line = from + (int64_t(z) * w.in[1] + row) * w.in[2] * planes.step;
        for (int c = 0; c < w.kernel[2]; ++c) {
          const int column = x0 + c * w.dilation[2];
          if (unsigned(column) < unsigned(w.in[2])) sum += C(line[column * planes.step]) * C(tap[c * taps.step]);
        }
      }
    }
    if (residual) sum += C(residual[i]);
    y[i] = T(activation.template simple<T>(sum));
  }
};

constexpr int64_t kBusy = 512;  // threads for each multiprocessor

template <class T, int kKernel, int kStride>
void launch_square(StreamRef stream, const ConvProblem& p, const ConvData& data, const Epilogue& rest) {
  const Window& w = p.window;
  const auto launch = [&]<int kDown>(int64_t least_threads) {
    using Kernel = DepthwiseSquare<T, kKernel, kStride, kDown>;
    constexpr int kAcross = Kernel::kAcross;
    const int64_t groups = (w.out[2] + kAcross - 1) / kAcross, runs = (w.out[1] + kDown - 1) / kDown;
    const int64_t n = p.images * p.out_channels * runs * groups;
    if (n < least_threads) return false;
    const auto *const x = static_cast<const T*>(data.x), *const residual = static_cast<const T*>(rest.residual);
    T* const y = static_cast<T*>(data.y);
    const bool wide_in =
        w.in[2] % kAcross == 0 && w.before[2] == Kernel::kBefore && device::is_pack_aligned<kAcross>(x);
    const bool wide_out =
        w.out[2] % kAcross == 0 && device::is_pack_aligned<kAcross>(y) && device::is_pack_aligned<kAcross>(residual);
    device::for_each_index(stream, n,
                           Kernel{x, static_cast<const T*>(data.w), static_cast<const T*>(data.bias), residual, y, w,
                                  rest.activation, Divider(groups, n), Divider(runs, n), Divider(p.out_channels, n),
                                  Divider(p.out_channels / p.in_channels, p.out_channels), wide_in, wide_out});
    return true;
  };
  if (!launch.template operator() < kKernel == 3 ? 4 : 2 > (kBusy * device::multiprocessors(stream.device())))
    launch.template operator()<1>(0);
}

void launch_depthwise(StreamRef stream, const ConvProblem& p, const ConvData& data, const Epilogue& rest) {
  if (convolve_depthwise_channels_last(stream, p, data, rest)) return;
  const Window& w = p.window;
  if (p.layout == Layout::channels_last || p.type == Type::f64 || !has_square_taps(w)) {
    const int64_t n = p.images * p.out_channels * w.out_count();
    dispatch(FloatList{}, p.type, [&]<class T>() {
      device::for_each_index(
          stream, n,
          Depthwise<T>{static_cast<const T*>(data.x), static_cast<const T*>(data.w), static_cast<const T*>(data.bias),
                       static_cast<const T*>(rest.residual), static_cast<T*>(data.y), w, rest.activation,
                       Elements(p.layout, p.out_channels, w.out, n), Planes(p.layout, p.in_channels, w.in_count()),
                       Planes(p.layout, p.out_channels, w.taps()),
                       Divider(p.out_channels / p.in_channels, p.out_channels)});
    });
    return;
  }
  dispatch(TypeList<float, Half, BFloat16>{}, p.type, [&]<class T>() {
    with_square_taps(w, [&]<int kKernel, int kStride> { launch_square<T, kKernel, kStride>(stream, p, data, rest); });
  });
}

}  // namespace

bool is_depthwise(const ConvProblem& p) { return p.groups == p.in_channels && p.groups > 1; }

bool has_square_taps(const Window& w) {
  return w.in[0] == 1 && w.kernel[0] == 1 && w.out[0] == 1 && w.kernel[1] == w.kernel[2] &&
         (w.kernel[2] == 3 || w.kernel[2] == 5 || w.kernel[2] == 7) && w.stride[1] == w.stride[2] && w.stride[2] <= 2 &&
         w.dilation[1] == 1 && w.dilation[2] == 1;
}

void convolve_depthwise(StreamRef stream, const ConvProblem& p, const ConvData& data, const Epilogue& rest) {
  if (rest.activation.is_simple(p.type)) return launch_depthwise(stream, p, data, rest);
  launch_depthwise(stream, p, data, {nullptr, rest.residual, {}});
  activate(stream, p.type, p.images * p.out_channels * p.window.out_count(), rest.activation, data.y);
}

}  // namespace encore::ops
