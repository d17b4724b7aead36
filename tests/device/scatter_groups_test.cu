// Sums of several values within groups of threads.
#include "device/scatter_groups.h"

#include <gtest/gtest.h>

#include "kernels.h"

namespace encore::device::tests {

// Thread t has t + 1000 i of value i, beside what it is not.
template <int kWidth, int kParts>
struct ScatteredSums {
  static constexpr int kMaxThreads = 128;
  struct Shared {
    bool any;
  };
  struct Pair {
    int sum, first;
  };
  struct Join {
    DEVICE_FN Pair operator()(const Pair& a, const Pair& b) const { return {a.sum + b.sum, a.first}; }
  };
  Pair* sums;
  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    PerThread<Pair, kMaxThreads> mine;
    scatter_groups<kWidth, kParts>(
        b, mine,
        [&](int t, Pair* parts) {
          UNROLL for (int i = 0; i < kParts; ++i) parts[i] = {t + 1000 * i, t};
        },
        Join{});
    b.threads([&](int t, Shared&) { sums[t] = mine[t]; });
  }
};

template <int kWidth, int kParts>
void check() {
  using Kernel = ScatteredSums<kWidth, kParts>;
  Stream stream(0);
  DeviceArray<typename Kernel::Pair> sums(Kernel::kMaxThreads);
  block_kernel<typename Kernel::Shared>(stream, {1, Kernel::kMaxThreads}, Kernel{sums.data()});
  const auto got = sums.download(stream);
  for (int t = 0; t < Kernel::kMaxThreads; ++t) {
    const int first = t / kWidth * kWidth;
    EXPECT_EQ(got[size_t(t)].sum, kWidth * (2 * first + kWidth - 1) / 2 + 1000 * kWidth * (t % kParts))
        << kWidth << " threads, " << kParts << " values, thread " << t;
    EXPECT_EQ(got[size_t(t)].first, first);  // operands come in the order of threads
  }
}

TEST(ScatterGroups, EachThreadHasOneOfTheSums) {
  check<32, 1>();
  check<32, 4>();
  check<32, 32>();
  check<8, 4>();
  check<8, 2>();
  check<4, 4>();
  check<2, 1>();
}

}  // namespace encore::device::tests
