#include "ops/nn/dropout.h"

#include "device/transform.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Compute;

// One draw of four words serves four neighbours.
template <class T>
struct ApplyDropout {
  static constexpr int kPack = 4;
  int64_t n;
  const T* x;
  T* y;
  uint8_t* mask;
  RandomRun run;
  float ratio;
  Compute<T> scale;
  bool aligned;

  DEVICE_FN void operator()(int64_t i) const {
    const int64_t first = i * kPack;
    const int count = n - first < kPack ? int(n - first) : kPack;
    const device::Random4 random = run.words(i);
    auto values = device::load_pack<kPack>(x + first, aligned, count);
    device::Pack<uint8_t, kPack> kept;
    UNROLL for (int k = 0; k < kPack; ++k) {
      kept.at[k] = device::uniform(random.word[k]) >= ratio;
      values.at[k] = T(Compute<T>(values.at[k]) * (kept.at[k] ? scale : Compute<T>(0)));  // NaN and infinity show
    }
    device::store_pack(y + first, values, aligned, count);
    if (mask) device::store_pack(mask + first, kept, aligned, count);
  }
};

}  // namespace

void apply_dropout(Context& context, const RandomRuns& runs, float ratio, const Tensor& x, const Tensor& y,
                   uint8_t* mask) {
  if (x.count() == 0) return;
  const RandomRun run = runs.next(context);
  dispatch(FloatList{}, x.type, [&]<class T>() {
    using Kernel = ApplyDropout<T>;
    constexpr int kPack = Kernel::kPack;
    const bool aligned = device::is_pack_aligned<kPack>(x.as<T>()) && device::is_pack_aligned<kPack>(y.as<T>()) &&
                         device::is_pack_aligned<kPack>(mask);
    device::for_each_index(context.stream(), (x.count() + kPack - 1) / kPack,
                           Kernel{x.count(), x.as<const T>(), y.as<T>(), mask, run, ratio,
                                  Compute<T>(1) / (Compute<T>(1) - Compute<T>(ratio)), aligned});
  });
}

bool drops_at_random(const Tensor& training_mode) {
  require(training_mode.type == Type::boolean && training_mode.count() == 1, "training_mode must be one bool");
  return *training_mode.as<const bool>();
}

float dropout_ratio(const Tensor& given) {
  require(given.count() == 1, "ratio has ", given.count(), " values; it must have one");
  float ratio = 0;
  dispatch(FloatList{}, given.type, [&]<class T>() { ratio = float(*given.as<const T>()); });
  require(ratio >= 0 && ratio < 1, "ratio is ", ratio, "; it must be at least 0 and less than 1");
  return ratio;
}

}  // namespace encore::ops
