#include "ops/random/runs.h"

#include <unistd.h>

#include <bit>
#include <cerrno>
#include <system_error>

#include "device/launch.h"
#include "device/memory.h"

namespace encore::ops {
namespace {

// Takes the next number for one run.
struct BeginRun {
  uint64_t *count, *mine;
  DEVICE_FN void operator()(int64_t) const { *mine = device::atomic_add(count, uint64_t(1)); }
};

// std::random_device has functions of the newest glibc do this, which older distributions lack.
uint64_t any_seed() {
  uint64_t seed = 0;
  if (getentropy(&seed, sizeof(seed))) throw std::system_error(errno, std::generic_category(), "no random seed");
  return seed;
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
