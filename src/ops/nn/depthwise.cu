// Convolutions with a group for each channel. There is nothing to multiply as matrices: they are bound by memory.
#include "device/device.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/nn/convolve.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;

// Square kernels over pictures. A thread has kRun outputs one below the other, and the threads of a warp lie side by
// side: their reads are coalesced, and each value is read once for all outputs that need it.
template <class T, int kKernel, int kStride>
struct DepthwiseSquare {
  static constexpr int kRun = 4;
  const T *x, *weights, *bias;
  T* y;
  Window w;
  Divider by_width, by_runs, by_channels, by_multiplier;
  DEVICE_FN void operator()(int64_t i) const {
    using C = Compute<T>;
    int64_t column, run, channel, ignored;
    const int64_t plane = by_runs(by_width(i, column), run), image = by_channels(plane, channel);
    const int64_t in_channel = by_multiplier(channel, ignored);
    const T* own = weights + channel * (kKernel * kKernel);
    C taps[kKernel][kKernel];
    UNROLL for (int a = 0; a < kKernel; ++a) UNROLL for (int b = 0; b < kKernel; ++b) taps[a][b] =
        C(own[a * kKernel + b]);
    C sums[kRun];
    const C base = bias ? C(bias[channel]) : C(0);
    UNROLL for (int o = 0; o < kRun; ++o) sums[o] = base;

    const int left = int(column) * kStride - w.before[2], top = int(run) * (kRun * kStride) - w.before[1];
    const T* from = x + (image * in_channels() + in_channel) * w.in_count() + int64_t(top) * w.in[2] + left;
    UNROLL for (int r = 0; r < (kRun - 1) * kStride + kKernel; ++r) {
      const bool inside = unsigned(top + r) < unsigned(w.in[1]);
      UNROLL for (int b = 0; b < kKernel; ++b) {  // loads without branches around them overlap
        const C value = inside && unsigned(left + b) < unsigned(w.in[2]) ? C(from[b]) : C(0);
        UNROLL for (int o = 0; o < kRun; ++o) {
          if (r >= o * kStride && r < o * kStride + kKernel) sums[o] += value * taps[r - o * kStride][b];
        }
      }
      from += w.in[2];
    }
    const int row = int(run) * kRun;
    T* to = y + plane * w.out_count() + int64_t(row) * w.out[2] + column;
    UNROLL for (int o = 0; o < kRun; ++o) {
      if (row + o < w.out[1]) to[int64_t(o) * w.out[2]] = T(sums[o]);
    }
  }

 private:
  DEVICE_FN int64_t in_channels() const {
    int64_t ignored;
    return by_multiplier(by_channels.divisor(), ignored);
  }
};

// The same, channels last: a thread has a pack of channels of kRun outputs side by side. The weights are [taps,
// channels]. Wide packs and long runs read least; narrow ones have more threads and loads under way at once, which is
// what small pictures lack.
template <class T, int kKernel, int kStride, bool kWide>
struct DepthwiseSquareLast {
  static constexpr int kRun = kWide ? 4 : 1, kPack = kWide ? device::pack_size<T>() : 2;
  static constexpr int kReach = (kRun - 1) * kStride + kKernel;
  using C = Compute<T>;
  using Values = device::Pack<T, kPack>;
  const T *x, *weights, *bias;
  T* y;
  Window w;
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
    const auto add_line = [&](int a) {
      const bool inside = unsigned(top + a) < unsigned(w.in[1]);
      Values values[kReach];
      UNROLL for (int j = 0; j < kReach; ++j) {
        UNROLL for (int k = 0; k < kPack; ++k) values[j].at[k] = T(0.f);
        if (inside && unsigned(left + j) < unsigned(w.in[2]))
          values[j] = device::load_pack<kPack>(corner + (int64_t(a) * w.in[2] + j) * channels, true);
      }
      UNROLL for (int b = 0; b < kKernel; ++b) {
        const Values taps = device::load_pack<kPack>(weights + (a * kKernel + b) * channels + channel, true);
        UNROLL for (int o = 0; o < kRun; ++o) UNROLL for (int k = 0; k < kPack; ++k) sums[o][k] +=
            C(values[o * kStride + b].at[k]) * C(taps.at[k]);
      }
    };
    if constexpr (kWide) {
      NO_UNROLL for (int a = 0; a < kKernel; ++a) add_line(a);
    } else {
      UNROLL for (int a = 0; a < kKernel; ++a) add_line(a);
    }
    T* to = y + ((image * w.out[1] + row) * w.out[2] + first) * channels + channel;
    UNROLL for (int o = 0; o < kRun; ++o) {
      if (first + o >= w.out[2]) break;
      Values values;
      UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = T(sums[o][k]);
      device::store_pack(to + o * channels, values, true);
    }
  }
};

// Any window and layout; one output a thread.
template <class T>
struct Depthwise {
  const T *x, *weights, *bias;
  T* y;
  Window w;
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
    y[i] = T(sum);
  }
};

template <class T, int kKernel, int kStride>
void launch_square_last(Context& context, const ConvProblem& p, const ConvData& data) {
  const Window& w = p.window;
  const auto launch = [&]<bool kWide>(int64_t least_threads) {
    using Kernel = DepthwiseSquareLast<T, kKernel, kStride, kWide>;
    const int64_t packs = p.out_channels / Kernel::kPack, runs = (w.out[2] + Kernel::kRun - 1) / Kernel::kRun;
    const int64_t n = p.images * w.out[1] * runs * packs;
    if (n < least_threads) return false;
    device::for_each_index(
        context.stream(), n,
        Kernel{static_cast<const T*>(data.x), static_cast<const T*>(data.w), static_cast<const T*>(data.bias),
               static_cast<T*>(data.y), w, Divider(packs, n), Divider(runs, n), Divider(w.out[1], n)});
    return true;
  };
  constexpr int64_t kBusy = 512;  // threads for each multiprocessor
  if (!launch.template operator()<true>(kBusy * device::multiprocessors(context.stream().device())))
    launch.template operator()<false>(0);
}

template <class T, int kKernel, int kStride>
void launch_square(Context& context, const ConvProblem& p, const ConvData& data) {
  if constexpr (kChannelsLastFloats.has(device::kTypeOf<T>))
    if (p.layout == Layout::channels_last) return launch_square_last<T, kKernel, kStride>(context, p, data);
  using Kernel = DepthwiseSquare<T, kKernel, kStride>;
  const Window& w = p.window;
  const int64_t runs = (w.out[1] + Kernel::kRun - 1) / Kernel::kRun, n = p.images * p.out_channels * runs * w.out[2];
  device::for_each_index(
      context.stream(), n,
      Kernel{static_cast<const T*>(data.x), static_cast<const T*>(data.w), static_cast<const T*>(data.bias),
             static_cast<T*>(data.y), w, Divider(w.out[2], n), Divider(runs, n), Divider(p.out_channels, n),
             Divider(p.out_channels / p.in_channels, p.out_channels)});
}

// Whether DepthwiseSquare does it, or the one for channels last.
bool is_square(const ConvProblem& p, const ConvData& data) {
  const Window& w = p.window;
  if (p.layout == Layout::channels_last) {
    if (p.in_channels != p.out_channels || p.in_channels * int64_t(device::size_bytes(p.type)) % 16 != 0) return false;
    for (const void* address : {data.x, data.w, static_cast<const void*>(data.y)})
      if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
  }
  return p.type != Type::f64 && w.in[0] == 1 && w.kernel[0] == 1 && w.out[0] == 1 && w.kernel[1] == w.kernel[2] &&
         (w.kernel[2] == 3 || w.kernel[2] == 5 || w.kernel[2] == 7) && w.stride[1] == w.stride[2] && w.stride[2] <= 2 &&
         w.dilation[1] == 1 && w.dilation[2] == 1;
}

}  // namespace

bool is_depthwise(const ConvProblem& p) { return p.groups == p.in_channels && p.groups > 1; }

void convolve_depthwise(Context& context, const ConvProblem& p, const ConvData& data) {
  const Window& w = p.window;
  if (!is_square(p, data)) {
    const int64_t n = p.images * p.out_channels * w.out_count();
    dispatch(FloatList{}, p.type, [&]<class T>() {
      device::for_each_index(
          context.stream(), n,
          Depthwise<T>{static_cast<const T*>(data.x), static_cast<const T*>(data.w), static_cast<const T*>(data.bias),
                       static_cast<T*>(data.y), w, Elements(p.layout, p.out_channels, w.out, n),
                       Planes(p.layout, p.in_channels, w.in_count()), Planes(p.layout, p.out_channels, w.taps()),
                       Divider(p.out_channels / p.in_channels, p.out_channels)});
    });
    return;
  }
  dispatch(TypeList<float, Half, BFloat16>{}, p.type, [&]<class T>() {
    const bool half_as_large = w.stride[2] == 2;
    switch (w.kernel[2]) {
      case 3:
        return half_as_large ? launch_square<T, 3, 2>(context, p, data) : launch_square<T, 3, 1>(context, p, data);
      case 5:
        return half_as_large ? launch_square<T, 5, 2>(context, p, data) : launch_square<T, 5, 1>(context, p, data);
      default:
        return half_as_large ? launch_square<T, 7, 2>(context, p, data) : launch_square<T, 7, 1>(context, p, data);
    }
  });
}

}  // namespace encore::ops
