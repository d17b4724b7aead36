#include "ops/attention/inputs/last_keys.h"

#include <algorithm>

#include "device/launch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

// A block has a row, of which a thread asks for two values at once.
struct CountKeys {
  static constexpr int kAtOnce = 2;
  const int64_t* mask;
  int32_t* last;
  int64_t width;
  uint64_t less;

  DEVICE_FN void operator()(device::Block<device::NoShared>& b, const device::NoShared&) const {
    const int64_t* const row = mask + b.index() * width;
    const uint64_t sum = b.reduce(
        uint64_t{0},
        [&](int t) {
          uint64_t own = 0;
          NO_UNROLL for (int64_t first = t; first < width; first += kAtOnce * b.size()) {
            uint64_t some[kAtOnce];
            UNROLL for (int n = 0; n < kAtOnce; ++n) {
              const int64_t i = first + n * b.size();
              some[n] = i < width ? uint64_t(row[i]) : 0;
            }
            own += some[0] + some[1];
          }
          return own;
        },
        [](uint64_t p, uint64_t q) { return p + q; });
    b.threads([&](int t, device::NoShared&) {
      if (t == 0) last[b.index()] = int32_t(sum - less);
    });
  }
};

class LastKeys final : public Op {
 public:
  explicit LastKeys(const NodeInfo& node) : less_(node.get_int(kLess, 0)) {}
  void run(Context& context) const override {
    const Tensor& mask = context.input(0);
    require(mask.shape.rank() == 2, "the mask has shape ", mask.shape.str(), "; it must have two dimensions");
    const int64_t rows = mask.shape[0], width = mask.shape[1];
    const Tensor last = context.output(0, {rows});
    constexpr int64_t kOfWarp = 32 * CountKeys::kAtOnce;
    const int64_t warps = std::clamp<int64_t>((width + kOfWarp - 1) / kOfWarp, 1, 32);
    device::block_kernel<device::NoShared>(
        context.stream(), {rows, int(32 * warps)},
        CountKeys{mask.as<const int64_t>(), last.as<int32_t>(), width, uint64_t(less_)});
  }

 private:
  int64_t less_;
};

}  // namespace

std::unique_ptr<Op> make_last_keys(const NodeInfo& node) { return std::make_unique<LastKeys>(node); }

}  // namespace encore::ops
