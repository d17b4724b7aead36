// Kernels are named functors, launched by
//   for_each_index(stream, n, f)                          f(i) for every i in [0, n)
//   block_kernel<Shared>(stream, {blocks, threads}, body) body(b, shared) for every block
// What a graph has recorded of the latter runs with another body of the same type, and other blocks, after
//   set_block_kernel<Shared>(exec, node, {blocks, threads}, body)
// which concerns launches to come, and may not meet one in another thread.
// A body opens phases, `b.threads([&](int t, Shared& s) { ... })`; the end of a phase is the barrier. Code between
// phases is uniform and writes nothing: it sees only a const Shared&. Collectives: b.reduce, b.scan, b.reduce_groups.
// What a launch only knows at run time, tiles sized by a problem, lies in the launch's dynamic shared memory: a phase,
// which has a Shared&, writes it through b.dynamic<T>(s), the code between reads it.
// A kernel waits for what was enqueued before it as it begins. A body with `kBeginsEarly` is begun earlier than that:
// it may read what nothing in a stream ever writes, a model's constants, and prefetch() anything, also what it guesses
// by reading what may still change; it has to say b.wait() in every thread of its first phase before all else.
// PerThread<T, kMaxThreads> is a register on CUDA and an array on the virtual GPU; index it by the phase's t.
//
//   struct RowSum {
//     struct Shared { float first; };
//     const float* x; float* y; int width;
//     DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
//       const float* row = x + int64_t(b.index()) * width;
//       b.threads([&](int t, Shared& s) { if (t == 0) s.first = row[0]; });
//       const float sum = b.reduce(0.f, [&](int t) { float v = 0; for (int i = t; i < width; i += b.size()) v +=
//       row[i]; return v; },
//                                  [](float a, float c) { return a + c; });
//       b.threads([&](int t, Shared&) { if (t == 0) y[b.index()] = sum - s.first; });
//     }
//   };
#pragma once
#include <cstdint>
#include <string_view>

#include "device/annotate.h"
#include "device/stream.h"

namespace encore::device {

struct Blocks {
  int64_t blocks;             // zero launches nothing
  int threads;                // a multiple of 32, at most 1024
  int64_t dynamic_bytes = 0;  // of shared memory, beside Shared; uninitialised
  bool late = false;          // not before earlier work is done, though it would wait: some lose by it
};
struct NoShared {};

// The most threads that a block of this body may have. The fewer, the more registers each gets: Body::kMaxThreads, else
// 1024.
template <class Body>
constexpr int max_threads() {
  if constexpr (requires { Body::kMaxThreads; })
    return Body::kMaxThreads;
  else
    return 1024;
}

template <class Body>
constexpr bool begins_early() {
  if constexpr (requires { Body::kBeginsEarly; })
    return Body::kBeginsEarly;
  else
    return false;
}

// What collectives need of shared memory.
inline constexpr int64_t kLaneBytes = 16, kLanesBytes = 32 * kLaneBytes;

// The functor's type name, as listings of graphs show it: what F is in a function's name, found when it is asked for.
class KernelName {
 public:
  explicit constexpr KernelName(const char* function) : function_(function) {}
  operator std::string_view() const;

 private:
  const char* function_;
};
template <class F>
constexpr KernelName kernel_name() {
  return KernelName(__PRETTY_FUNCTION__);
}

}  // namespace encore::device

#ifdef __CUDACC__
#include "device/cuda/launch.h"
#else
#include "device/virtual/launch.h"
#endif
