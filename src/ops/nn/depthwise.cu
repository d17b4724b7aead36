// Convolutions with a group for each channel. There is nothing to multiply as matrices: they are bound by memory.
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/nn/convolve.h"

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

// Any window; one output a thread.
template <class T>
struct Depthwise {
  const T *x, *weights, *bias;
  T* y;
  Window w;
  Positions positions;
  Divider by_channels, by_multiplier;
  DEVICE_FN void operator()(int64_t i) const {
    using C = Compute<T>;
    int at[kSpatial];
    const int64_t plane = positions(i, at);
    int64_t channel, ignored;
    const int64_t image = by_channels(plane, channel);
    const int64_t in_plane = image * by_multiplier(by_channels.divisor(), ignored) + by_multiplier(channel, ignored);
    const T* from = x + in_plane * w.in_count();
    const T* tap = weights + channel * w.taps();
    C sum = bias ? C(bias[channel]) : C(0);
    const int z0 = at[0] * w.stride[0] - w.before[0], y0 = at[1] * w.stride[1] - w.before[1];
    const int x0 = at[2] * w.stride[2] - w.before[2];
    for (int a = 0; a < w.kernel[0]; ++a) {
      const int z = z0 + a * w.dilation[0];
      for (int b = 0; b < w.kernel[1]; ++b, tap += w.kernel[2]) {
        const int row = y0 + b * w.dilation[1];
        if (unsigned(z) >= unsigned(w.in[0]) || unsigned(row) >= unsigned(w.in[1])) continue;
        const T* line = from + (int64_t(z) * w.in[1] + row) * w.in[2];
        for (int c = 0; c < w.kernel[2]; ++c) {
          const int column = x0 + c * w.dilation[2];
          if (unsigned(column) < unsigned(w.in[2])) sum += C(line[column]) * C(tap[c]);
        }
      }
    }
    y[i] = T(sum);
  }
};

template <class T, int kKernel, int kStride>
void launch_square(Context& context, const ConvProblem& p, const ConvData& data) {
  using Kernel = DepthwiseSquare<T, kKernel, kStride>;
  const Window& w = p.window;
  const int64_t runs = (w.out[1] + Kernel::kRun - 1) / Kernel::kRun, n = p.images * p.out_channels * runs * w.out[2];
  device::for_each_index(
      context.stream(), n,
      Kernel{static_cast<const T*>(data.x), static_cast<const T*>(data.w), static_cast<const T*>(data.bias),
             static_cast<T*>(data.y), w, Divider(w.out[2], n), Divider(runs, n), Divider(p.out_channels, n),
             Divider(p.out_channels / p.in_channels, p.out_channels)});
}

// Whether DepthwiseSquare does it.
bool is_square(const ConvProblem& p) {
  const Window& w = p.window;
  return p.type != Type::f64 && w.in[0] == 1 && w.kernel[0] == 1 && w.out[0] == 1 && w.kernel[1] == w.kernel[2] &&
         (w.kernel[2] == 3 || w.kernel[2] == 5 || w.kernel[2] == 7) && w.stride[1] == w.stride[2] && w.stride[2] <= 2 &&
         w.dilation[1] == 1 && w.dilation[2] == 1;
}

}  // namespace

bool is_depthwise(const ConvProblem& p) { return p.groups == p.in_channels && p.groups > 1; }

void convolve_depthwise(Context& context, const ConvProblem& p, const ConvData& data) {
  const Window& w = p.window;
  if (!is_square(p)) {
    const int64_t n = p.images * p.out_channels * w.out_count();
    dispatch(FloatList{}, p.type, [&]<class T>() {
      device::for_each_index(
          context.stream(), n,
          Depthwise<T>{static_cast<const T*>(data.x), static_cast<const T*>(data.w), static_cast<const T*>(data.bias),
                       static_cast<T*>(data.y), w, Positions(w.out, n), Divider(p.out_channels, n),
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
