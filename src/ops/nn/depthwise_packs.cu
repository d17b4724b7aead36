#include <bit>
#include <utility>

#include "device/divide_small.h"
#include "device/prefetch.h"
#include "device/words.h"
#include "ops/dispatch.h"
#include "ops/nn/channels_last_depthwise.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Compute;
using device::NoShared;
using device::Pack;
using device::SmallDivider;

// A thread has a pack of channels, kBytes of them, of one output. It asks for kRows x kColumns taps at once, with what
// they are multiplied by: also for those that the window lacks, which only then are left out. The weights are
// [taps, channels]. With kMultiplies several channels in a row are of one of x.
template <class T, int kRows, int kColumns, int kBytes, bool kMultiplies = false>
struct DepthwisePacks {
  static constexpr int kPack = kBytes / int(sizeof(T)), kMaxThreads = 256;
  static constexpr bool kBeginsEarly = true;
  using C = Compute<T>;
  using Words = device::WordsOf<T, kPack>;

  const T *x, *weights, *bias, *residual;
  T* y;
  Window w;
  bool turned;  // the window's lines are the picture's columns
  Activation activation;
  int channels;
  int64_t n, image_step, weight_bytes;
  uint32_t steps[kSpatial], tap_step;  // in bytes: of the window's places in x, and of its taps
  SmallDivider by_packs, by_places[kSpatial], by_multiplier;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    b.threads([&](int t, NoShared&) {
      constexpr int kLine = 128;
      const int64_t i = int64_t(b.index()) * b.size() + t;
      if (i * kLine < weight_bytes) device::prefetch(reinterpret_cast<const char*>(weights) + i * kLine);
      b.wait();
      if (i < n) convolve(int(i));
    });
  }

 private:
  DEVICE_FN void convolve(int i) const {
    int pack, at[kSpatial];
    int image = by_packs(i, pack);
    UNROLL for (int d = kSpatial - 1; d >= 0; --d) image = by_places[d](image, at[d]);
    const int line = turned ? at[2] : at[1], column = turned ? at[1] : at[2], channel = pack * kPack;
    const int front = at[0] * w.stride[0] - w.before[0];
    const int top = line * w.stride[1] - w.before[1], left = column * w.stride[2] - w.before[2];
    const T* const from = x + image * image_step + (kMultiplies ? 0 : channel);
    uint32_t sources[kPack] = {};  // in bytes
    UNROLL for (int k = 0; kMultiplies && k < kPack; ++k) {
      int ignored;
      sources[k] = uint32_t(by_multiplier(channel + k, ignored)) * uint32_t(sizeof(T));
    }
    const T* taps = weights + channel;
    const Words base = device::load_words<kPack>(bias ? bias + channel : taps);
    C sums[kPack];
    UNROLL for (int k = 0; k < kPack; ++k) sums[k] = bias ? value_of(base, k) : C(0);
    for (int a = 0; a < w.kernel[0]; ++a, taps += int64_t(w.kernel[1]) * w.kernel[2] * channels) {
      const int plane = front + a * w.dilation[0];
      if (unsigned(plane) >= unsigned(w.in[0])) continue;
      const uint32_t above = uint32_t(plane) * steps[0];
      for (int r = 0; r < w.kernel[1]; r += kRows) {
        const Neighbours<kRows> lines(top + r * w.dilation[1], w.in[1], steps[1], w.dilation[1]);
        for (int c = 0; c < w.kernel[2]; c += kColumns) {
          const Neighbours<kColumns> columns(left + c * w.dilation[2], w.in[2], steps[2], w.dilation[2]);
          Words values[kRows][kColumns], factors[kRows][kColumns];
          UNROLL for (int j = 0; j < kRows; ++j) UNROLL for (int k = 0; k < kColumns; ++k) {
            const int tap = clamped(r + j, w.kernel[1]) * w.kernel[2] + clamped(c + k, w.kernel[2]);
            factors[j][k] = settled_at(taps, uint32_t(tap) * tap_step);
            const uint32_t place = above + lines.bytes[j] + columns.bytes[k];
            values[j][k] = kMultiplies ? settled_at(from, place, sources) : settled_at(from, place);
          }
          UNROLL for (int j = 0; j < kRows; ++j) UNROLL for (int k = 0; k < kColumns; ++k) {
            if (r + j < w.kernel[1] && c + k < w.kernel[2])
              add(sums, values[j][k], factors[j][k], lines.masks[j] & columns.masks[k]);
          }
        }
      }
    }
    store(sums, int64_t(i) * kPack);
  }

  DEVICE_FN static Words settled_at(const T* from, uint32_t bytes) {
    Words words = device::load_words<kPack>(reinterpret_cast<const T*>(reinterpret_cast<const char*>(from) + bytes));
    UNROLL for (uint32_t& word : words.at) word = device::settled(word);
    return words;
  }
  DEVICE_FN static Words settled_at(const T* from, uint32_t bytes, const uint32_t (&sources)[kPack]) {
    Pack<T, kPack> values;
    UNROLL for (int k = 0; k < kPack; ++k) values.at[k] =
        *reinterpret_cast<const T*>(reinterpret_cast<const char*>(from) + (bytes + sources[k]));
    auto words = std::bit_cast<Words>(values);
    UNROLL for (uint32_t& word : words.at) word = device::settled(word);
    return words;
  }
  DEVICE_FN static C value_of(const Words& words, int k) { return C(device::pack_of<T>(words).at[k]); }
  DEVICE_FN static void add(C (&sums)[kPack], Words values, const Words& factors, uint32_t mask) {
    UNROLL for (uint32_t& word : values.at) word &= mask;
    UNROLL for (int k = 0; k < kPack; ++k) sums[k] += value_of(values, k) * value_of(factors, k);
  }
  DEVICE_FN void store(C (&sums)[kPack], int64_t first) const {
    if (residual) {
      const Words more = device::load_words<kPack>(residual + first);
      UNROLL for (int k = 0; k < kPack; ++k) sums[k] += value_of(more, k);
    }
    activation.template simple<T>(sums);
    Pack<T, kPack> made;
    UNROLL for (int k = 0; k < kPack; ++k) made.at[k] = T(sums[k]);
    device::store_whole(y + first, made);
  }
};

template <class T, int kRows, int kColumns, int kBytes, bool kMultiplies = false>
bool launch_packs(StreamRef stream, const ConvProblem& p, const ConvData& data, const Epilogue& rest) {
  using Kernel = DepthwisePacks<T, kRows, kColumns, kBytes, kMultiplies>;
  const int(&out)[kSpatial] = p.window.out;
  const int64_t packs = p.out_channels / Kernel::kPack, n = p.images * p.window.out_count() * packs;
  const int64_t pixel = p.out_channels * int64_t(sizeof(T)), weight_bytes = p.window.taps() * pixel;
  if (n > INT32_MAX || weight_bytes > UINT32_MAX) return false;
  Window w = p.window;
  uint32_t steps[kSpatial] = {};
  for (int d = 0; d < kSpatial; ++d) steps[d] = uint32_t(w.in_step(d) * x_pitch(p, data) * int64_t(sizeof(T)));
  const bool turned = w.kernel[2] == 1;
  if (turned) {
    for (int* sizes : {w.in, w.kernel, w.stride, w.dilation, w.before}) std::swap(sizes[1], sizes[2]);
    std::swap(steps[1], steps[2]);
  }
  int threads = Kernel::kMaxThreads;
  while (threads > 64 && n < threads * int64_t(device::multiprocessors(stream.device()))) threads /= 2;
  const auto typed = [](const void* at) { return static_cast<const T*>(at); };
  device::block_kernel<NoShared>(stream, {(n + threads - 1) / threads, threads},
                                 Kernel{typed(data.x),
                                        typed(data.w),
                                        typed(data.bias),
                                        typed(rest.residual),
                                        static_cast<T*>(data.y),
                                        w,
                                        turned,
                                        rest.activation,
                                        int(p.out_channels),
                                        n,
                                        w.in_count() * x_pitch(p, data),
                                        weight_bytes,
                                        {steps[0], steps[1], steps[2]},
                                        uint32_t(pixel),
                                        SmallDivider(int(packs)),
                                        {SmallDivider(out[0]), SmallDivider(out[1]), SmallDivider(out[2])},
                                        SmallDivider(int(p.out_channels / p.in_channels))});
  return true;
}

template <class T, int kRows, int kColumns>
bool launch_wide_packs(StreamRef stream, const ConvProblem& p, const ConvData& data, const Epilogue& rest) {
  constexpr int kWide = kRows * kColumns == 1 ? 16 : 8;
  const int64_t words = p.images * p.window.out_count() * p.out_channels * int64_t(sizeof(T)) / 4;
  if (words > threads_at_once(stream) && are_packs(p, data, rest, kWide))
    return launch_packs<T, kRows, kColumns, kWide>(stream, p, data, rest);
  return launch_packs<T, kRows, kColumns, 4>(stream, p, data, rest);
}

}  // namespace

bool convolve_depthwise_packs(StreamRef stream, const ConvProblem& p, const ConvData& data, const Epilogue& rest) {
  const bool one_row = p.window.kernel[1] == 1, one_column = p.window.kernel[2] == 1;
  bool launched = false;
  dispatch(TypeList<float, Half, BFloat16>{}, p.type, [&]<class T>() {
    launched = p.in_channels != p.out_channels ? launch_packs<T, 3, 3, 4, true>(stream, p, data, rest)
               : one_row && one_column         ? launch_wide_packs<T, 1, 1>(stream, p, data, rest)
               : one_row || one_column         ? launch_wide_packs<T, 1, 9>(stream, p, data, rest)
                                               : launch_wide_packs<T, 3, 3>(stream, p, data, rest);
  });
  return launched;
}

}  // namespace encore::ops
