#include "ops/nn/epilogue.h"

#include "device/divide.h"
#include "device/divide_small.h"
#include "device/settled.h"
#include "device/words.h"
#include "ops/choice.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;
using device::Pack;
using device::SmallDivider;

template <class T, int kPack>
DEVICE_FN Pack<T, kPack> activated(const Activation& activation, Compute<T> (&x)[kPack]) {
  activation.template choose<T>([&](auto curve) { UNROLL for (int i = 0; i < kPack; ++i) x[i] = curve(x[i]); });
  Pack<T, kPack> made;
  UNROLL for (int i = 0; i < kPack; ++i) made.at[i] = T(x[i]);
  return made;
}

// Neighbours are of one channel, unless packs reach over rows: then the channel is looked up anew at each boundary.
template <class T>
struct Finish {
  static constexpr int kPack = device::pack_size<T>();
  int64_t n, width, channels;  // of channels last, the width is one
  const T *bias, *residual;    // null where there is none
  T* y;
  Activation activation;
  Divider by_width, by_channels;
  bool aligned;

  DEVICE_FN void operator()(int64_t pack) const {
    const int64_t first = pack * kPack;
    const int count = n - first < kPack ? int(n - first) : kPack;
    int64_t at, channel = 0;
    const Pack<T, kPack> values = device::load_pack<kPack>(y + first, aligned, count);
    Compute<T> x[kPack];
    UNROLL for (int i = 0; i < kPack; ++i) x[i] = Compute<T>(values.at[i]);
    if (bias) {
      by_channels(by_width(first, at), channel);
      Compute<T> of = Compute<T>(bias[channel]);
      UNROLL for (int i = 0; i < kPack; ++i) {
        if (at == width) {
          at = 0;
          if (++channel == channels) channel = 0;
          of = Compute<T>(bias[channel]);
        }
        x[i] += of;
        ++at;
      }
    }
    if (residual) {
      const Pack<T, kPack> more = device::load_pack<kPack>(residual + first, aligned, count);
      UNROLL for (int i = 0; i < kPack; ++i) x[i] += Compute<T>(more.at[i]);
    }
    device::store_pack(y + first, activated<T>(activation, x), aligned, count);
  }
};

// Of whole packs, fewer than 2^31, each of one channel, or with channels last of neighbours. No load waits for another.
template <class T, bool kLast>
struct FinishPacks {
  static constexpr int kPack = device::pack_size<T>(), kBiases = kLast ? kPack : 1;
  const T *bias, *residual;  // null where there is none
  T* y;
  Activation activation;
  SmallDivider by_width, by_channels;  // in packs: a channel's, unless it is last, and then the channels

  DEVICE_FN void operator()(int64_t pack) const {
    int at, channel;
    by_channels(kLast ? int(pack) : by_width(int(pack), at), channel);
    const int64_t first = pack * kPack;
    const auto values = device::pack_of<T>(settled(device::load_words<kPack>(y + first)));
    const auto more = device::pack_of<T>(settled(device::load_words<kPack>(residual ? residual + first : y + first)));
    const auto base = device::load_aligned<kBiases>(bias ? bias + int64_t(channel) * kBiases : y + first);
    Compute<T> x[kPack];
    UNROLL for (int i = 0; i < kPack; ++i) {
      x[i] = Compute<T>(values.at[i]);
      x[i] = bias ? x[i] + Compute<T>(base.at[kLast ? i : 0]) : x[i];
      x[i] = residual ? x[i] + Compute<T>(more.at[i]) : x[i];
    }
    device::store_whole(y + first, activated<T>(activation, x));
  }

 private:
  template <int kWords>
  DEVICE_FN static Pack<uint32_t, kWords> settled(Pack<uint32_t, kWords> words) {
    UNROLL for (uint32_t& word : words.at) word = device::settled(word);
    return words;
  }
};

// The curve is chosen once for two packs, which are on their way at the same time.
template <class T>
struct ActivatePacks {
  static constexpr int kPack = device::pack_size<T>(), kAtOnce = 2;
  int64_t n, apart;  // values, and packs from a thread's first to its second
  T* y;
  Activation activation;
  bool aligned;

  DEVICE_FN void operator()(int64_t pack) const {
    const auto each = [&](auto f) {
      UNROLL for (int k = 0; k < kAtOnce; ++k) {
        const int64_t first = (pack + k * apart) * kPack, left = n - first;
        if (left > 0) f(k * kPack, y + first, left < kPack ? int(left) : kPack);
      }
    };
    Compute<T> x[kAtOnce * kPack] = {};
    each([&](int at, const T* from, int count) {
      const auto values = device::load_pack<kPack>(from, aligned, count);
      UNROLL for (int i = 0; i < kPack; ++i) x[at + i] = Compute<T>(values.at[i]);
    });
    const auto made = activated<T>(activation, x);
    each([&](int at, T* to, int count) {
      Pack<T, kPack> own;
      UNROLL for (int i = 0; i < kPack; ++i) own.at[i] = made.at[at + i];
      device::store_pack(to, own, aligned, count);
    });
  }
};

}  // namespace

Activation Activation::of(const NodeInfo& node, const std::string& attribute) {
  struct Known {
    Kind kind;
    size_t params;
  };
  const Known known = read_choice<Known>(node, attribute.c_str(), "",
                                         {{"", {Kind::none, 0}},
                                          {"Relu", {Kind::relu, 0}},
                                          {"LeakyRelu", {Kind::leaky_relu, 1}},
                                          {"Clip", {Kind::clip, 2}},
                                          {"HardSigmoid", {Kind::hard_sigmoid, 2}},
                                          {"HardSwish", {Kind::hard_swish, 0}},
                                          {"Silu", {Kind::silu, 0}},
                                          {"QuickGelu", {Kind::quick_gelu, 1}},
                                          {"Gelu", {Kind::gelu, 0}},
                                          {"FastGelu", {Kind::fast_gelu, 0}},
                                          {"Sigmoid", {Kind::sigmoid, 0}},
                                          {"Tanh", {Kind::tanh, 0}},
                                          {"ScaledRelu", {Kind::scaled_relu, 2}},
                                          {"ScaledHardSwish", {Kind::scaled_hard_swish, 2}}});
  const std::string name = attribute + "_params";
  const std::vector<float> params = node.find_floats(name.c_str()).value_or(std::vector<float>());
  require(params.size() == known.params, name, " has ", params.size(), " values; activation '",
          node.get_string(attribute.c_str(), ""), "' takes ", known.params);
  return {known.kind, params.empty() ? 0 : params[0], params.size() < 2 ? 0 : params[1]};
}

void activate(StreamRef stream, Type type, int64_t n, const Activation& activation, void* y) {
  if (activation.kind == Activation::Kind::none) return;
  dispatch(FloatList{}, type, [&]<class T>() {
    using Kernel = ActivatePacks<T>;
    T* const values = static_cast<T*>(y);
    const int64_t packs = (n + Kernel::kPack - 1) / Kernel::kPack, apart = (packs + 1) / Kernel::kAtOnce;
    device::for_each_index(stream, apart,
                           Kernel{n, apart, values, activation, device::is_pack_aligned<Kernel::kPack>(values)});
  });
}

void finish(StreamRef stream, const ConvProblem& p, int64_t width, const Epilogue& epilogue, void* y) {
  const bool last = p.layout == Layout::channels_last;
  const int64_t n = p.images * p.out_channels * width;
  if (n == 0 || epilogue.is_empty()) return;
  dispatch(FloatList{}, p.type, [&]<class T>() {
    constexpr int kPack = device::pack_size<T>();
    const auto* const bias = static_cast<const T*>(epilogue.bias);
    const auto* const residual = static_cast<const T*>(epilogue.residual);
    T* const to = static_cast<T*>(y);
    const bool aligned = device::is_pack_aligned<kPack>(to) && device::is_pack_aligned<kPack>(residual);
    const int64_t row = last ? 1 : width, whole = last ? p.out_channels : width, packs = (n + kPack - 1) / kPack;
    if (aligned && whole % kPack == 0 && packs <= INT32_MAX && (!last || device::is_pack_aligned<kPack>(bias))) {
      const SmallDivider by_row(int(whole / kPack));
      if (last)
        return device::for_each_index(
            stream, packs, FinishPacks<T, true>{bias, residual, to, epilogue.activation, SmallDivider(1), by_row});
      return device::for_each_index(
          stream, packs,
          FinishPacks<T, false>{bias, residual, to, epilogue.activation, by_row, SmallDivider(int(p.out_channels))});
    }
    device::for_each_index(stream, packs,
                           Finish<T>{n, row, p.out_channels, bias, residual, to, epilogue.activation, Divider(row, n),
                                     Divider(p.out_channels, n), aligned});
  });
}

}  // namespace encore::ops
