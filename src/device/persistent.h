// Persistent kernels: all blocks run at the same time, for many steps, and tell one another values.
//   persistent_kernel<Shared>(stream, {blocks, threads, steps, dynamic_bytes}, body)
// calls body.begin(b, shared, own) for every block, and then body(b, shared, own, step) for each step. What keeps its
// values until the last step is Shared, dynamic memory, and `own`, a PerThread<Body::Own, Body::kMaxThreads>. There are
// at most as many blocks as multiprocessors.
//
// A value comes beside the number of the step that made it (NCCL calls this LL), so to read it is to wait for it and no
// barrier is needed. In a step a block gets values of the step before and then puts its own, in begin() as of step -1.
// A slot is written again two steps later: so a block gets in each step at least one value of every block that gets one
// of its own. Slots are zeros when the kernel is launched.
#pragma once
#include <bit>
#include <cstdint>

#include "device/launch.h"
#include "device/pack.h"

namespace encore::device {

struct Persistent {
  int64_t blocks;  // zero launches nothing
  int threads;     // of a block, as in Blocks
  int64_t steps;
  int64_t dynamic_bytes = 0;
};

// Floats by index. Pairs begin at an even one, and slots at 16 bytes.
class StepValues {
 public:
  static constexpr int64_t bytes_of(int64_t count) { return 2 * count * int64_t(sizeof(uint64_t)); }
  StepValues(void* slots, int64_t count) : slots_(static_cast<uint64_t*>(slots)), count_(count) {}

  DEVICE_FN void put(int64_t i, int64_t step, float value) const;
  // pairs[k] = those at first + k * stride, for all of kPairs that are below `end`.
  template <int kPairs>
  DEVICE_FN void get_pairs(int64_t first, int64_t stride, int64_t end, int64_t step, Pack<float, 2>* pairs) const;

 private:
  static DEVICE_FN uint64_t packed(float value, int64_t step) {
    return uint64_t(tag(step)) << 32 | std::bit_cast<uint32_t>(value);
  }
  static DEVICE_FN uint32_t tag(int64_t step) { return uint32_t(step) + 2; }  // zero: nothing was put
  static DEVICE_FN bool is_of(int64_t step, uint64_t slot) { return uint32_t(slot >> 32) == tag(step); }
  static DEVICE_FN float value_of(uint64_t slot) { return std::bit_cast<float>(uint32_t(slot)); }
  DEVICE_FN uint64_t* slots_of(int64_t step) const { return slots_ + (step & 1) * count_; }

  uint64_t* slots_;
  int64_t count_;
};

}  // namespace encore::device

#ifdef __CUDACC__
#include "device/cuda/persistent.h"
#else
#include "device/virtual/persistent.h"
#endif
