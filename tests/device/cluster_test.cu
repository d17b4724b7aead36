// Clusters: blocks that read what the others of theirs left in shared memory.
#include "device/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"
#include "kernels.h"

namespace encore::device::tests {

// What each block has in all, and what is before it in its cluster.
struct SumsOfClusters {
  static constexpr int kMaxThreads = 256;
  static constexpr bool kBeginsEarly = true;
  struct Shared {
    int64_t values[kMaxThreads], sum;
  };
  const int64_t* x;
  int64_t *totals, *before;
  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    b.threads([&](int t, Shared& s) {
      b.wait();
      s.values[t] = x[b.index() * b.size() + t];
    });
    b.threads([&](int t, Shared& s) {
      if (t > 0) return;
      s.sum = 0;
      for (int i = 0; i < b.size(); ++i) s.sum += s.values[i];
    });
  }
  DEVICE_FN void join(Block<Shared>& b, const Shared& own, const Cluster<Shared>& cluster) const {
    int64_t sum = 0;
    for (int r = 0; r < cluster.rank(); ++r) sum += cluster.shared(r).sum;
    int64_t total = sum + own.sum;
    for (int r = cluster.rank() + 1; r < cluster.size(); ++r) total += cluster.shared(r).sum;
    b.threads([&](int t, Shared&) {
      if (t > 0) return;
      before[b.index()] = sum;
      totals[b.index()] = total;
    });
  }
};

// Of this and any functor here; 1 where there are no clusters.
template <class Body = SumsOfClusters>
int most() {
  return most_in_cluster<SumsOfClusters::Shared, Body>(0);
}

TEST(Cluster, HopperAndLaterHaveThem) {
  EXPECT_EQ(most(), describe(0).compute_capability_major >= 9 ? kMostInCluster : 1);
}

TEST(Cluster, BlocksSeeWhatTheOthersShare) {
  Stream stream(0);
  for (const int threads : {32, 256}) {
    for (int blocks = 1; blocks <= most(); blocks *= 2) {
      for (const int64_t clusters : {1, 3, 200}) {
        const auto all = size_t(clusters * blocks);
        std::vector<int64_t> x(all * size_t(threads)), sums(all), expected_before(all), expected(all);
        std::iota(x.begin(), x.end(), 7);
        for (size_t i = 0; i < x.size(); ++i) sums[i / size_t(threads)] += x[i];
        for (size_t i = 0; i < all; ++i) {
          const auto first = sums.begin() + ptrdiff_t(i / size_t(blocks) * size_t(blocks));
          expected_before[i] = std::accumulate(first, sums.begin() + ptrdiff_t(i), int64_t(0));
          expected[i] = std::accumulate(first, first + blocks, int64_t(0));
        }
        DeviceArray<int64_t> from(x), totals(all), before(all);
        cluster_kernel<SumsOfClusters::Shared>(stream, {clusters, blocks, threads},
                                               SumsOfClusters{from.data(), totals.data(), before.data()});
        EXPECT_EQ(before.download(stream), expected_before) << threads << " threads, " << blocks << " blocks";
        EXPECT_EQ(totals.download(stream), expected) << threads << " threads, " << blocks << " blocks";
      }
    }
  }
}

// Another functor, whose kernel is asked about and launched in a capture first.
struct CapturedSums : SumsOfClusters {};

TEST(Cluster, AreCaptured) {
  Stream stream(0);
  DeviceArray<int64_t> from(std::vector<int64_t>(8 * 64, 3)), totals(8), before(8);
  begin_capture(stream, CaptureMode::thread_local_);
  const int blocks = most<CapturedSums>();
  cluster_kernel<SumsOfClusters::Shared>(stream, {8 / blocks, blocks, 64},
                                         CapturedSums{{from.data(), totals.data(), before.data()}});
  const Graph graph = end_capture(stream);
  graph.instantiate().launch(stream);
  EXPECT_EQ(totals.download(stream), std::vector<int64_t>(8, blocks * 64 * 3));
}

// The same by way of dynamic shared memory, more than is always there.
struct SumsByDynamic : SumsOfClusters {
  static constexpr int64_t kDynamicBytes = 90 * 1024;
  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    b.threads([&](int t, Shared& s) {
      b.wait();
      b.template dynamic<int64_t>(s, kDynamicBytes / 2)[t] = x[b.index() * b.size() + t];
    });
    int64_t sum = 0;
    for (int i = 0; i < b.size(); ++i) sum += b.template dynamic<int64_t>(s, kDynamicBytes / 2)[i];
    b.threads([&](int t, Shared& s) {
      if (t == 0) s.sum = sum;
    });
  }
};

TEST(Cluster, BlocksHaveDynamicMemoryOfTheirOwn) {
  Stream stream(0);
  DeviceArray<int64_t> from(std::vector<int64_t>(8 * 64, 3)), totals(8), before(8);
  const int blocks = std::min(4, most<SumsByDynamic>());
  ASSERT_EQ(blocks, std::min(4, most()));
  cluster_kernel<SumsOfClusters::Shared>(stream, {8 / blocks, blocks, 64},
                                         SumsByDynamic{{from.data(), totals.data(), before.data()}});
  EXPECT_EQ(totals.download(stream), std::vector<int64_t>(8, blocks * 64 * 3));
}

// The last words of as much as the launch asks for.
struct SumsByLess : SumsOfClusters {
  static constexpr int64_t kDynamicBytes = 90 * 1024;
  int64_t bytes;
  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    const int64_t first = bytes - int64_t(sizeof(int64_t)) * b.size();
    b.threads([&](int t, Shared& s) {
      b.wait();
      b.template dynamic<int64_t>(s, first)[t] = x[b.index() * b.size() + t];
    });
    int64_t sum = 0;
    for (int i = 0; i < b.size(); ++i) sum += b.template dynamic<int64_t>(s, first)[i];
    b.threads([&](int t, Shared& s) {
      if (t == 0) s.sum = sum;
    });
  }
};

TEST(Cluster, LaunchesMayAskForLessDynamicMemory) {
  Stream stream(0);
  DeviceArray<int64_t> from(std::vector<int64_t>(8 * 64, 3)), totals(8), before(8);
  const int blocks = std::min(4, most<SumsByLess>());
  for (const int64_t bytes : {int64_t(512), int64_t(60 * 1024), SumsByLess::kDynamicBytes}) {
    cluster_kernel<SumsOfClusters::Shared>(stream, {8 / blocks, blocks, 64, bytes},
                                           SumsByLess{{from.data(), totals.data(), before.data()}, bytes});
    EXPECT_EQ(totals.download(stream), std::vector<int64_t>(8, blocks * 64 * 3)) << bytes;
  }
}

struct SpreadSums : SumsOfClusters {
  static constexpr bool kSpreads = true;
};

TEST(Cluster, BlocksThatSpreadAllRun) {
  Stream stream(0);
  constexpr size_t kBlocks = 2000;  // many times what finds room at once
  DeviceArray<int64_t> from(std::vector<int64_t>(kBlocks * 64, 3)), totals(kBlocks), before(kBlocks);
  for (const int in_cluster : {1, std::min(4, most<SpreadSums>())}) {
    cluster_kernel<SumsOfClusters::Shared>(stream, {int64_t(kBlocks) / in_cluster, in_cluster, 64},
                                           SpreadSums{{from.data(), totals.data(), before.data()}});
    EXPECT_EQ(totals.download(stream), std::vector<int64_t>(kBlocks, in_cluster * 64 * 3)) << in_cluster;
  }
}

struct TooMuch : SumsOfClusters {
  static constexpr int64_t kDynamicBytes = 226 * 1024;  // and Shared
};

TEST(Cluster, ImpossibleOnesAreRefused) {
  Stream stream(0);
  for (const int blocks : {3, 2 * most(), 32, 0, -1})  // twice one: a cluster where there are none
    EXPECT_THROW(cluster_kernel<SumsOfClusters::Shared>(stream, {1, blocks, 64}, SumsOfClusters{}), Error) << blocks;
  EXPECT_THROW(cluster_kernel<SumsOfClusters::Shared>(stream, {int64_t(1) << 31, 2, 64}, SumsOfClusters{}), Error);
  EXPECT_EQ(most<TooMuch>(), 0);
  EXPECT_THROW(cluster_kernel<SumsOfClusters::Shared>(stream, {1, 2, 64}, TooMuch{}), Error);
  cluster_kernel<SumsOfClusters::Shared>(stream, {0, 2, 64}, SumsOfClusters{});
  clear_error(0);
  stream.ref().synchronize();
}

}  // namespace encore::device::tests
