#include "ops/nn/epilogue.h"

#include "device/divide.h"
#include "device/transform.h"
#include "ops/choice.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;
using device::Pack;

// Neighbours are of one channel, unless packs reach over rows: then the channel is looked up anew at each boundary.
template <class T>
struct Finish {
  static constexpr int kPack = device::pack_size<T>();
  int64_t n, width, channels;  // of channels last, the width is one
  const T *bias, *residual;    // null where there is none
  T* y;
  Activation activation;
  Divider by_width, by_channels;
  bool aligned, bias_in_packs;

  DEVICE_FN void operator()(int64_t pack) const {
    const int64_t first = pack * kPack;
    const int count = n - first < kPack ? int(n - first) : kPack;
    int64_t at, channel = 0;
    const Pack<T, kPack> values = device::load_pack<kPack>(y + first, aligned, count);
    Compute<T> x[kPack];
    UNROLL for (int i = 0; i < kPack; ++i) x[i] = Compute<T>(values.at[i]);
    if (bias) {
      if (bias_in_packs) {
        by_channels(first, channel);
        const Pack<T, kPack> more = device::load_pack<kPack>(bias + channel, true);
        UNROLL for (int i = 0; i < kPack; ++i) x[i] += Compute<T>(more.at[i]);
      } else {
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
    }
    if (residual) {
      const Pack<T, kPack> more = device::load_pack<kPack>(residual + first, aligned, count);
      UNROLL for (int i = 0; i < kPack; ++i) x[i] += Compute<T>(more.at[i]);
    }
    Pack<T, kPack> out;
    UNROLL for (int i = 0; i < kPack; ++i) out.at[i] = T(activation.template whole<T>(x[i]));
    device::store_pack(y + first, out, aligned, count);
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
                                          {"TanhGelu", {Kind::tanh_gelu, 0}},
                                          {"Sigmoid", {Kind::sigmoid, 0}},
                                          {"Tanh", {Kind::tanh, 0}}});
  const std::string name = attribute + "_params";
  const std::vector<float> params = node.find_floats(name.c_str()).value_or(std::vector<float>());
  require(params.size() == known.params, name, " has ", params.size(), " values; activation '",
          node.get_string(attribute.c_str(), ""), "' takes ", known.params);
  return {known.kind, params.empty() ? 0 : params[0], params.size() < 2 ? 0 : params[1]};
}

void finish(StreamRef stream, const ConvProblem& p, int64_t width, const Epilogue& epilogue, void* y) {
  const bool last = p.layout == Layout::channels_last;
  const int64_t n = p.images * p.out_channels * width;
  if (n == 0 || epilogue.is_empty()) return;
  dispatch(FloatList{}, p.type, [&]<class T>() {
    using Kernel = Finish<T>;
    constexpr int kPack = Kernel::kPack;
    const auto* const bias = static_cast<const T*>(epilogue.bias);
    const auto* const residual = static_cast<const T*>(epilogue.residual);
    const bool aligned = device::is_pack_aligned<kPack>(static_cast<T*>(y)) && device::is_pack_aligned<kPack>(residual);
    const bool bias_in_packs = last && p.out_channels % kPack == 0 && device::is_pack_aligned<kPack>(bias);
    const int64_t row = last ? 1 : width;
    device::for_each_index(stream, (n + kPack - 1) / kPack,
                           Kernel{n, row, p.out_channels, bias, residual, static_cast<T*>(y), epilogue.activation,
                                  Divider(row, n), Divider(p.out_channels, n), aligned, bias_in_packs});
  });
}

}  // namespace encore::ops
