// BiasDropout, BitmaskDropout and BitmaskBiasDropout: Dropout with what models put around it, and masks of bits.
#include "device/divide.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/nn/dropout.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;

// y = apply_dropout(x + bias) + residual. Two draws of four words serve eight neighbours, the words that Dropout gives
// them.
template <class T>
struct DropAround {
  static constexpr int kPack = 8;
  int64_t n;
  const T *x, *bias, *residual;  // bias and residual may be null
  T* y;
  uint8_t *mask, *bits;       // a byte a value, or a bit; either may be null
  device::Divider by_biases;  // after so many values the bias repeats
  RandomRun run;
  bool drops;  // else all is kept
  float ratio;
  Compute<T> scale;
  bool aligned, bias_aligned;

  DEVICE_FN void operator()(int64_t i) const {
    using C = Compute<T>;
    const int64_t first = i * kPack;
    if (first >= n) {  // the mask ends with a word
      bits[i] = drops ? 0 : 0xff;
      return;
    }
    const int count = n - first < kPack ? int(n - first) : kPack;
    const auto read = device::load_pack<kPack>(x + first, aligned, count);
    C values[kPack];
    UNROLL for (int k = 0; k < kPack; ++k) values[k] = C(read.at[k]);
    if (bias) {
      int64_t at;
      by_biases(first, at);
      if (bias_aligned) {
        const auto more = device::load_pack<kPack>(bias + at, true);
        UNROLL for (int k = 0; k < kPack; ++k) values[k] += C(more.at[k]);
      } else {
        UNROLL for (int k = 0; k < kPack; ++k) {
          if (k < count) values[k] += C(bias[at]);
          if (++at == by_biases.divisor()) at = 0;
        }
      }
    }
    device::Pack<uint8_t, kPack> kept;
    UNROLL for (int k = 0; k < kPack; ++k) kept.at[k] = 1;
    if (drops) {
      UNROLL for (int part = 0; part < kPack / 4; ++part) {
        const device::Random4 random = run.words(i * (kPack / 4) + part);
        UNROLL for (int k = 0; k < 4; ++k) {
          kept.at[part * 4 + k] = device::uniform(random.word[k]) >= ratio;
          values[part * 4 + k] *= kept.at[part * 4 + k] ? scale : C(0);  // NaN and infinity show
        }
      }
    }
    if (residual) {
      const auto more = device::load_pack<kPack>(residual + first, aligned, count);
      UNROLL for (int k = 0; k < kPack; ++k) values[k] += C(more.at[k]);
    }
    device::Pack<T, kPack> out;
    UNROLL for (int k = 0; k < kPack; ++k) out.at[k] = T(values[k]);
    device::store_pack(y + first, out, aligned, count);
    if (mask) device::store_pack(mask + first, kept, aligned, count);
    if (!bits) return;
    unsigned together = 0;
    UNROLL for (int k = 0; k < kPack; ++k) together |= unsigned(kept.at[k] && (k < count || !drops)) << k;
    bits[i] = uint8_t(together);
  }
};

template <bool kBiased, bool kBits>
class AroundDropout : public Op {
 public:
  explicit AroundDropout(const NodeInfo& node) {
    bool trains = node.has_input(kTraining);
    if (const Tensor* training = node.constant_input(kTraining)) trains = drops_at_random(*training);
    if (const Tensor* ratio = node.constant_input(kRatio)) dropout_ratio(*ratio);
    if (!trains) return;
    const std::optional<int64_t> seed = node.find_int("seed");
    runs_.emplace(seed ? std::optional<uint64_t>(*seed) : std::nullopt);
  }
  void prepare(Prepack& prepack) override {
    if (runs_) runs_->prepare(prepack);
  }
  void run(Context& context) const override {
    const Tensor &x = context.input(0), *ratio = context.find_input(kRatio), *training = context.find_input(kTraining);
    const float share = ratio ? dropout_ratio(*ratio) : 0.5f;
    const bool drops = training && drops_at_random(*training) && share > 0;
    const Tensor *bias = kBiased ? &context.input(1) : nullptr, *residual = kBiased ? context.find_input(2) : nullptr;
    if (bias)
      require(bias->shape == x.shape || (x.shape.rank() > 0 && bias->shape == Shape{x.shape.back()}), "bias ",
              bias->shape.str(), " must have the shape of data ", x.shape.str(), " or of its last dimension");
    if (residual)
      require(residual->shape == x.shape, "residual ", residual->shape.str(), " must have the shape of data ",
              x.shape.str());
    const Tensor y = context.output(0, x.shape);
    Tensor mask;
    const int64_t words = x.count() / 32 + (x.count() % 32 != 0);
    if (context.wants_output(1)) mask = context.output(1, kBits ? Shape{words} : x.shape);
    if (x.count() == 0) return;
    const RandomRun run = drops ? runs_->next(context) : RandomRun{};
    dispatch(FloatList{}, x.type, [&]<class T>() {
      using Kernel = DropAround<T>;
      using C = Compute<T>;
      constexpr int kPack = Kernel::kPack;
      const T *biases = bias ? bias->as<const T>() : nullptr, *residuals = residual ? residual->as<const T>() : nullptr;
      uint8_t *bytes = kBits ? nullptr : mask.as<uint8_t>(), *bits = kBits ? mask.as<uint8_t>() : nullptr;
      const bool aligned = device::is_pack_aligned<kPack>(x.as<T>()) && device::is_pack_aligned<kPack>(y.as<T>()) &&
                           device::is_pack_aligned<kPack>(residuals) && device::is_pack_aligned<kPack>(bytes);
      const int64_t period = bias ? bias->count() : 1;
      device::for_each_index(context.stream(), bits ? words * 4 : (x.count() + kPack - 1) / kPack,
                             Kernel{x.count(), x.as<const T>(), biases, residuals, y.as<T>(), bytes, bits,
                                    device::Divider(period, x.count()), run, drops, share, C(1) / (C(1) - C(share)),
                                    aligned, period % kPack == 0 && device::is_pack_aligned<kPack>(biases)});
    });
  }

 private:
  static constexpr int kRatio = kBiased ? 3 : 1, kTraining = kRatio + 1;
  std::optional<RandomRuns> runs_;  // if it trains
};

template <bool kBiased, bool kBits>
OpRow dropout_row(const char* name) {
  const int ratio = kBiased ? 3 : 1;
  std::vector<TypeRule> types = {in(0, kFloats), in(ratio, kFloats), in(ratio + 1, kBool)};
  return {.domain = kMicrosoft,
          .name = name,
          .since = 1,
          .types = types,
          .make = make<AroundDropout<kBiased, kBits>>,
          .host_inputs = {ratio, ratio + 1},
          .may_reuse = {{0, 0}}};
}

}  // namespace

std::vector<OpRow> bias_dropout_rows() {
  return {dropout_row<true, false>("BiasDropout"), dropout_row<false, true>("BitmaskDropout"),
          dropout_row<true, true>("BitmaskBiasDropout")};
}

}  // namespace encore::ops
