#include "ops/random/runs.h"

#include <bit>
#include <random>

#include "device/launch.h"
#include "device/memory.h"

namespace encore::ops {
namespace {

// Takes the next number for one run.
struct BeginRun {
  uint64_t *count, *mine;
  DEVICE_FN void operator()(int64_t) const { *mine = device::atomic_add(count, uint64_t(1)); }
};

uint64_t any_seed() {
  std::random_device random;
  return uint64_t(random()) << 32 | random();
}

}  // namespace

RandomRuns::RandomRuns(std::optional<uint64_t> seed) : seed_(seed ? *seed : any_seed()) {}

RandomRuns RandomRuns::of(const NodeInfo& node) {
  const std::optional<float> seed = node.find_float("seed");
  return RandomRuns(seed ? std::optional<uint64_t>(std::bit_cast<uint32_t>(*seed)) : std::nullopt);
}

void RandomRuns::prepare(Prepack& prepack) {
  count_ = static_cast<uint64_t*>(prepack.keep(sizeof(uint64_t)));
  device::fill(prepack.stream(), count_, 0, sizeof(uint64_t));
}

RandomRun RandomRuns::next(Context& context) const {
  auto* const mine = static_cast<uint64_t*>(context.scratch(sizeof(uint64_t)));
  device::for_each_index(context.stream(), 1, BeginRun{count_, mine});
  return {seed_, mine};
}

}  // namespace encore::ops
