// IsAllFinite of com.microsoft: whether there is no NaN and no infinity in any of the inputs.
#include <algorithm>

#include "device/atomic.h"
#include "device/launch.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

struct SetTrue {
  bool* y;
  DEVICE_FN void operator()(int64_t) const { *y = true; }
};

constexpr int kInputs = 32;  // of a launch

// A thread looks at a pack of one input.
template <class T>
struct FindBad {
  static constexpr int kPack = device::pack_size<T>();

  const T* x[kInputs];
  int64_t counts[kInputs], ends[kInputs];  // ends: of each input's packs among all
  int inputs;
  bool nan, infinite;  // what is bad
  bool* y;

  DEVICE_FN void operator()(int64_t i) const {
    int input = 0;
    while (i >= ends[input]) ++input;
    const int64_t first = (i - (input ? ends[input - 1] : 0)) * kPack, left = counts[input] - first;
    const T* const from = x[input] + first;
    const auto pack =
        device::load_pack<kPack>(from, device::is_pack_aligned<kPack>(from), left < kPack ? int(left) : kPack);
    bool bad = false;
    UNROLL for (int k = 0; k < kPack; ++k) {
      const auto value = device::Compute<T>(pack.at[k]);
      const bool is_nan = value != value;
      bad |= is_nan ? nan : infinite && value - value != 0;
    }
    if (bad) device::atomic_update(y, [](bool) { return false; });
  }
};

class IsAllFinite : public Op {
 public:
  explicit IsAllFinite(const NodeInfo& node)
      : nan_(node.get_int("isinf_only", 0) == 0), infinite_(node.get_int("isnan_only", 0) == 0) {
    require(nan_ || infinite_, "isinf_only and isnan_only are both set; one at most makes sense");
  }
  void run(Context& context) const override {
    const Type type = context.input(0).type;
    const Tensor y = context.output(0, Shape{});
    device::for_each_index(context.stream(), 1, SetTrue{y.as<bool>()});
    dispatch(FloatList{}, type, [&]<class T> {
      FindBad<T> next{{}, {}, {}, 0, nan_, infinite_, y.as<bool>()};
      int64_t packs = 0;
      const auto launch = [&] {
        device::for_each_index(context.stream(), packs, next);
        next.inputs = 0, packs = 0;
      };
      for (int i = 0; i < context.input_count(); ++i) {
        const Tensor& x = context.input(i);
        require(x.type == type, "input ", i, " is ", device::name(x.type), ", the first ", device::name(type));
        if (x.count() == 0) continue;
        packs += (x.count() + FindBad<T>::kPack - 1) / FindBad<T>::kPack;
        next.x[next.inputs] = x.as<const T>();
        next.counts[next.inputs] = x.count();
        next.ends[next.inputs++] = packs;
        if (next.inputs == kInputs) launch();
      }
      launch();
    });
  }

 private:
  bool nan_, infinite_;
};

}  // namespace

std::vector<OpRow> all_finite_rows() {
  return {{.domain = kMicrosoft,
           .name = "IsAllFinite",
           .since = 1,
           .types = {in_all(0, kFloats)},
           .make = make<IsAllFinite>}};
}

}  // namespace encore::ops
