// What makes each run of a random operator another one, replays of a captured graph too.
#pragma once
#include <optional>

#include "device/philox.h"
#include "ops/op.h"

namespace encore::ops {

// One run, as kernels see it.
struct RandomRun {
  uint64_t seed;
  const uint64_t* number;
  DEVICE_FN device::Random4 words(int64_t index) const { return device::philox(seed, *number, uint64_t(index)); }
};

class RandomRuns {
 public:
  // Runs that begin with the same seed are alike; without one, none are.
  explicit RandomRuns(std::optional<uint64_t> seed);
  static RandomRuns of(const NodeInfo& node);  // with the attribute "seed", a float

  void prepare(Prepack& prepack);
  RandomRun next(Context& context) const;  // takes a launch

 private:
  uint64_t seed_;
  uint64_t* count_ = nullptr;  // in device memory: how many runs there have been
};

}  // namespace encore::ops
