// Launches: every index once, phases, collectives, atomics.
#include "device/launch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "device/device.h"
#include "device/graph.h"
#include "kernels.h"

namespace encore::device::tests {

struct CountIndex {
  int* seen;
  int64_t n;
  DEVICE_FN void operator()(int64_t i) const {
    if (i >= 0 && i < n) atomic_add(&seen[i], 1);
  }
};

struct DoubledIndex {
  int64_t* y;
  DEVICE_FN void operator()(int64_t i) const { y[i] = i * 2 + 1; }
};

// Each block reverses its piece through shared memory: the barrier between the phases matters.
struct Reverse {
  static constexpr int kPiece = 256;
  struct Shared {
    int piece[kPiece];
  };
  const int* x;
  int* y;
  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const int64_t base = b.index() * b.size();
    b.threads([&](int t, Shared& s) { s.piece[t] = x[base + t]; });
    b.threads([&](int t, Shared& s) { y[base + t] = s.piece[b.size() - 1 - t]; });
  }
};

// The same through dynamic shared memory, which begins after as many bytes as asked for.
struct ReverseDynamic {
  struct Shared {
    int first;
  };
  const int* x;
  int* y;
  int64_t at;
  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    const int64_t base = b.index() * b.size();
    b.threads([&](int t, Shared& s) {
      b.dynamic<int>(s, at)[t] = x[base + t];
      if (t == 0) s.first = x[base];
    });
    const int last = b.dynamic<int>(s, at)[b.size() - 1];  // alike for all threads
    b.threads([&](int t, Shared& s) {
      const bool intact = s.first == b.dynamic<int>(s, at)[0] && last == x[base + b.size() - 1];
      y[base + t] = intact ? b.dynamic<int>(s, at)[b.size() - 1 - t] : -1;
    });
  }
};

struct BlockShape {
  int64_t* y;
  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    b.threads([&](int t, NoShared&) {
      y[b.index() * b.size() + t] = b.index() * 1'000'000 + b.count() * 10'000 + b.size() + t;
    });
  }
};

struct AtMost64 {
  static constexpr int kMaxThreads = 64;
  DEVICE_FN void operator()(Block<NoShared>&, const NoShared&) const {}
};

struct Best {  // 8 bytes: a value and where it is
  float value;
  int index;
};
struct Moments {  // 16 bytes
  double sum;
  int64_t count;
};
struct BestOf {
  DEVICE_FN Best operator()(Best a, Best b) const {
    return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
  }
};
struct AddMoments {
  DEVICE_FN Moments operator()(Moments a, Moments b) const { return {a.sum + b.sum, a.count + b.count}; }
};
struct Plus {
  template <class T>
  DEVICE_FN T operator()(T a, T b) const {
    return a + b;
  }
};

// Every thread writes what it sees of each reduction: all must see the same.
struct ReduceAll {
  const int* x;
  int* sums;
  float* float_sums;
  Best* best;
  Moments* moments;
  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    const int* row = x + b.index() * b.size();
    const int sum = b.reduce(
        5, [&](int t) { return row[t]; }, Plus());
    const float float_sum = b.reduce(
        0.f, [&](int t) { return float(row[t]); }, Plus());
    const Best top = b.reduce(
        Best{-1e30f, -1},
        [&](int t) {
          return Best{float(row[t] % 50), t};
        },
        BestOf());
    const Moments all = b.reduce(
        Moments{0, 0},
        [&](int t) {
          return Moments{double(row[t]), 1};
        },
        AddMoments());
    b.threads([&](int t, NoShared&) {
      const int64_t i = b.index() * b.size() + t;
      sums[i] = sum;
      float_sums[i] = float_sum;
      best[i] = top;
      moments[i] = all;
    });
  }
};

template <int kWidth>
struct ReduceGroups {
  const int* x;
  int* sums;
  Best* best;
  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    const int64_t base = b.index() * b.size();
    PerThread<int, 256> sum;
    PerThread<Best, 256> top;
    b.template reduce_groups<kWidth>(
        sum, [&](int t) { return x[base + t]; }, Plus());
    b.template reduce_groups<kWidth>(
        top,
        [&](int t) {
          return Best{float(x[base + t] % 50), t};
        },
        BestOf());
    b.threads([&](int t, NoShared&) {
      sums[base + t] = sum[t];
      best[base + t] = top[t];
    });
  }
};

template <class T>
struct Scan {
  const int* x;
  T* before;
  T* totals;
  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    const int64_t base = b.index() * b.size();
    PerThread<T, 1024> sums;
    const T total = b.scan(
        sums, T(100), [&](int t) { return T(x[base + t]); }, Plus());
    b.threads([&](int t, NoShared&) {
      before[base + t] = sums[t];
      totals[base + t] = total;
    });
  }
};

// Registers keep their values over several phases; shared memory passes neighbours'.
struct Rounds {
  static constexpr int kThreads = 128;
  struct Shared {
    int value[kThreads];
  };
  const int* x;
  int* y;
  int rounds;
  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const int64_t base = b.index() * b.size();
    PerThread<int, kThreads> own;
    b.threads([&](int t, Shared&) { own[t] = x[base + t]; });
    for (int round = 0; round < rounds; ++round) {
      b.threads([&](int t, Shared& s) { s.value[t] = own[t]; });
      b.threads([&](int t, Shared& s) { own[t] += s.value[(t + 1) % b.size()] % 7; });
    }
    b.threads([&](int t, Shared&) { y[base + t] = own[t]; });
  }
};

struct Histogram {
  int* counts;
  int bins;
  DEVICE_FN void operator()(int64_t i) const { atomic_add(&counts[i % bins], 1); }
};
struct AddFloats {
  float* sum;
  DEVICE_FN void operator()(int64_t) const { atomic_add(sum, 0.5f); }
};
struct ClaimOnce {
  int* cell;
  int* winners;
  DEVICE_FN void operator()(int64_t i) const {
    if (atomic_exchange_if(cell, 0, int(i) + 1) == 0) atomic_add(winners, 1);
  }
};

namespace {

std::vector<int> numbers(size_t n) {
  std::vector<int> all(n);
  uint32_t state = 12345;
  for (int& each : all) {
    state = state * 1664525u + 1013904223u;
    each = int(state >> 20);
  }
  return all;
}

TEST(ForEachIndex, VisitsEveryIndexOnce) {
  Stream stream(0);
  for (int64_t n : {int64_t(0), int64_t(1), int64_t(31), int64_t(255), int64_t(256), int64_t(257), int64_t(1000),
                    (int64_t(1) << 20) + 3}) {
    DeviceArray<int> seen(std::vector<int>(size_t(n) + 2, 0));
    for_each_index(stream, n, CountIndex{seen.data(), n + 2});
    std::vector<int> expected(size_t(n) + 2, 1);
    expected[size_t(n)] = expected[size_t(n) + 1] = 0;
    EXPECT_EQ(seen.download(stream), expected) << n;
  }
  for_each_index(stream, -5, CountIndex{nullptr, 0});
  stream.ref().synchronize();
}

TEST(ForEachIndex, HandsOutLargeIndices) {
  Stream stream(0);
  constexpr int64_t kSize = 3'000'017;
  DeviceArray<int64_t> y(kSize);
  for_each_index(stream, kSize, DoubledIndex{y.data()});
  const auto seen = y.download(stream);
  for (int64_t i = 0; i < kSize; ++i) ASSERT_EQ(seen[size_t(i)], i * 2 + 1);
}

TEST(Block, KnowsItsShape) {
  Stream stream(0);
  DeviceArray<int64_t> y(7 * 96);
  block_kernel<NoShared>(stream, {7, 96}, BlockShape{y.data()});
  const auto seen = y.download(stream);
  for (int64_t i = 0; i < 7 * 96; ++i) EXPECT_EQ(seen[size_t(i)], i / 96 * 1'000'000 + 7 * 10'000 + 96 + i % 96);
}

TEST(Block, LaunchesNothingWithoutBlocks) {
  Stream stream(0);
  block_kernel<NoShared>(stream, {0, 96}, BlockShape{nullptr});
  stream.ref().synchronize();
}

TEST(Block, ImpossibleGridIsRefused) {
  Stream stream(0);
  for (int threads : {0, -32, 31, 33, 1056}) {
    EXPECT_THROW(block_kernel<NoShared>(stream, {1, threads}, BlockShape{nullptr}), Error) << threads;
  }
  EXPECT_THROW(block_kernel<NoShared>(stream, {int64_t(1) << 31, 32}, BlockShape{nullptr}), Error);
  EXPECT_THROW(block_kernel<NoShared>(stream, {1, 96}, AtMost64{}), Error);
  clear_error(0);
  stream.ref().synchronize();
}

TEST(Block, PhasesEndInABarrier) {
  Stream stream(0);
  for (int threads : {32, 64, 256}) {
    constexpr int kBlocks = 50;
    const std::vector<int> x = numbers(size_t(kBlocks * threads));
    DeviceArray<int> from(x), to(x.size());
    block_kernel<Reverse::Shared>(stream, {kBlocks, threads}, Reverse{from.data(), to.data()});
    std::vector<int> expected = x;
    for (int block = 0; block < kBlocks; ++block)
      std::reverse(expected.begin() + block * threads, expected.begin() + (block + 1) * threads);
    EXPECT_EQ(to.download(stream), expected) << threads;
  }
}

TEST(Block, SharedMemoryIsWhatTheArchitectureHas) {
  const Description device = describe(0);
  const int major = device.compute_capability_major, minor = device.compute_capability_minor;
  const int64_t kib = major == 8 ? (minor == 0 || minor == 7 ? 163 : 99) : major == 12 ? 99 : 227;
  EXPECT_EQ(shared_bytes(0), kib * 1024) << device.name;
}

TEST(Block, DynamicSharedMemory) {
  Stream stream(0);
  constexpr int kBlocks = 20, kThreads = 256;
  const std::vector<int> x = numbers(kBlocks * kThreads);
  std::vector<int> expected = x;
  for (int block = 0; block < kBlocks; ++block)
    std::reverse(expected.begin() + block * kThreads, expected.begin() + (block + 1) * kThreads);
  for (int64_t kib : {int64_t(1), int64_t(40), int64_t(64), shared_bytes(0) / 1024 - 1}) {  // above 48: if allowed
    DeviceArray<int> from(x), to(x.size());
    const int64_t bytes = kib * 1024;
    block_kernel<ReverseDynamic::Shared>(
        stream, {kBlocks, kThreads, bytes},
        ReverseDynamic{from.data(), to.data(), bytes - int64_t(kThreads * sizeof(int))});
    EXPECT_EQ(to.download(stream), expected) << kib << " KiB";
  }
}

// Another functor, whose first launch is captured.
struct ReverseCaptured : ReverseDynamic {};

TEST(Block, DynamicSharedMemoryIsAllowedFirstInACapture) {
  Stream stream(0);
  constexpr int kThreads = 128;
  const std::vector<int> x = numbers(kThreads);
  DeviceArray<int> from(x), to(x.size());
  begin_capture(stream, CaptureMode::thread_local_);
  block_kernel<ReverseDynamic::Shared>(stream, {1, kThreads, 90 * 1024},
                                       ReverseCaptured{{from.data(), to.data(), 64 * 1024}});
  const Graph graph = end_capture(stream);
  graph.instantiate().launch(stream);
  EXPECT_EQ(to.download(stream), std::vector<int>(x.rbegin(), x.rend()));
}

TEST(Block, MoreDynamicSharedMemoryThanThereIsIsRefused) {
  Stream stream(0);
  for (const int64_t bytes : {shared_bytes(0), int64_t(1) << 20, int64_t(1) << 40, int64_t(-1)})
    EXPECT_THROW(block_kernel<ReverseDynamic::Shared>(stream, {1, 32, bytes}, ReverseDynamic{}), Error) << bytes;
  clear_error(0);
  stream.ref().synchronize();
}

TEST(Block, Reduces) {
  Stream stream(0);
  constexpr int kBlocks = 9;
  for (int threads : {32, 64, 96, 128, 256, 480, 512, 992, 1024}) {
    const size_t n = size_t(kBlocks * threads);
    const std::vector<int> x = numbers(n);
    DeviceArray<int> in(x), sums(n);
    DeviceArray<float> float_sums(n);
    DeviceArray<Best> best(n);
    DeviceArray<Moments> moments(n);
    block_kernel<NoShared>(stream, {kBlocks, threads},
                           ReduceAll{in.data(), sums.data(), float_sums.data(), best.data(), moments.data()});
    const auto seen_sums = sums.download(stream);
    const auto seen_floats = float_sums.download(stream);
    const auto seen_best = best.download(stream);
    const auto seen_moments = moments.download(stream);
    for (int block = 0; block < kBlocks; ++block) {
      const int* row = x.data() + block * threads;
      const int sum = std::accumulate(row, row + threads, 0);
      const int top = int(std::max_element(row, row + threads, [](int a, int b) { return a % 50 < b % 50; }) - row);
      for (int t = 0; t < threads; ++t) {
        const size_t i = size_t(block * threads + t);
        ASSERT_EQ(seen_sums[i], sum + 5) << threads;
        ASSERT_EQ(seen_floats[i], float(sum)) << threads;  // exact: below 2^24
        ASSERT_EQ(seen_best[i].index, top) << threads;
        ASSERT_EQ(seen_best[i].value, float(row[top] % 50)) << threads;
        ASSERT_EQ(seen_moments[i].sum, double(sum)) << threads;
        ASSERT_EQ(seen_moments[i].count, threads);
      }
    }
  }
}

template <int kWidth>
void check_groups() {
  Stream stream(0);
  constexpr int kBlocks = 5, kThreads = 256;
  const std::vector<int> x = numbers(kBlocks * kThreads);
  DeviceArray<int> in(x), sums(x.size());
  DeviceArray<Best> best(x.size());
  block_kernel<NoShared>(stream, {kBlocks, kThreads}, ReduceGroups<kWidth>{in.data(), sums.data(), best.data()});
  const auto seen = sums.download(stream);
  const auto seen_best = best.download(stream);
  for (size_t i = 0; i < x.size(); ++i) {
    const int* group = x.data() + i / kWidth * kWidth;
    ASSERT_EQ(seen[i], std::accumulate(group, group + kWidth, 0)) << kWidth << " wide, at " << i;
    const int top =
        int(std::max_element(group, group + kWidth, [](int a, int b) { return a % 50 < b % 50; }) - x.data());
    ASSERT_EQ(seen_best[i].index, top % kThreads) << kWidth << " wide, at " << i;
  }
}

TEST(Block, ReducesGroups) {
  check_groups<8>();
  check_groups<16>();
  check_groups<32>();
  check_groups<2>();
}

template <class T>
void check_scan() {
  Stream stream(0);
  for (int threads : {32, 64, 352, 1024}) {
    constexpr int kBlocks = 6;
    const std::vector<int> x = numbers(size_t(kBlocks * threads));
    DeviceArray<int> in(x);
    DeviceArray<T> before(x.size()), totals(x.size());
    block_kernel<NoShared>(stream, {kBlocks, threads}, Scan<T>{in.data(), before.data(), totals.data()});
    const auto seen = before.download(stream);
    const auto seen_totals = totals.download(stream);
    for (int block = 0; block < kBlocks; ++block) {
      T sum = 100;
      const size_t base = size_t(block * threads);
      for (size_t t = 0; t < size_t(threads); ++t) {
        ASSERT_EQ(seen[base + t], sum) << threads << " threads, at " << t;
        sum += T(x[base + t]);
      }
      for (size_t t = 0; t < size_t(threads); ++t) ASSERT_EQ(seen_totals[base + t], sum) << threads;
    }
  }
}

TEST(Block, Scans) {
  check_scan<int>();
  check_scan<int64_t>();
  check_scan<float>();
}

TEST(Block, RegistersLiveOverPhases) {
  Stream stream(0);
  constexpr int kBlocks = 20, kRounds = 13;
  std::vector<int> x = numbers(kBlocks * Rounds::kThreads);
  DeviceArray<int> in(x), out(x.size());
  block_kernel<Rounds::Shared>(stream, {kBlocks, Rounds::kThreads}, Rounds{in.data(), out.data(), kRounds});
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<int> before = x;
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t base = i / Rounds::kThreads * Rounds::kThreads;
      x[i] += before[base + (i - base + 1) % Rounds::kThreads] % 7;
    }
  }
  EXPECT_EQ(out.download(stream), x);
}

TEST(Block, SharedMemoryIsEachBlocksOwn) {
  Stream stream(0);
  const std::vector<int> x = numbers(3000 * 32);
  DeviceArray<int> in(x), out(x.size());
  block_kernel<Reverse::Shared>(stream, {3000, 32}, Reverse{in.data(), out.data()});
  const auto seen = out.download(stream);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(seen[i], x[i / 32 * 32 + 31 - i % 32]);
}

TEST(Atomics, LoseNothing) {
  Stream stream(0);
  constexpr int kBins = 17, kSize = 100'000;
  DeviceArray<int> counts(std::vector<int>(kBins, 0));
  for_each_index(stream, kSize, Histogram{counts.data(), kBins});
  const auto seen = counts.download(stream);
  for (int bin = 0; bin < kBins; ++bin) EXPECT_EQ(seen[size_t(bin)], kSize / kBins + (bin < kSize % kBins));

  DeviceArray<float> sum(std::vector<float>{1});
  for_each_index(stream, 10'000, AddFloats{sum.data()});
  EXPECT_EQ(sum.download(stream)[0], 5001.f);

  DeviceArray<int> cell(std::vector<int>{0}), winners(std::vector<int>{0});
  for_each_index(stream, 10'000, ClaimOnce{cell.data(), winners.data()});
  EXPECT_EQ(winners.download(stream)[0], 1);
  EXPECT_GT(cell.download(stream)[0], 0);
}

TEST(KernelName, IsTheFunctors) {
  const std::string_view one = kernel_name<Reverse>(), other = kernel_name<Scan<float>>();
  EXPECT_NE(one.find("tests::Reverse"), std::string_view::npos) << one;
  EXPECT_NE(other.find("Scan<float>"), std::string_view::npos) << other;
}

}  // namespace
}  // namespace encore::device::tests
