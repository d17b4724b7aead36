// The highest of ranks, and of equal ones the greatest place, over groups and blocks of threads.
#include "device/ranked.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "kernels.h"

namespace encore::device::tests {

template <class Rank, int kWidth>
struct FindHighest {
  const Ranked<Rank>* x;
  Ranked<Rank>*of_group, *of_block;
  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    const int64_t base = b.index() * b.size();
    const Ranked<Rank> nothing{std::numeric_limits<Rank>::min(), std::numeric_limits<int32_t>::min()};
    const auto own = [&](int t) { return x[base + t]; };
    PerThread<Ranked<Rank>, 256> group;
    b.template reduce_groups<kWidth>(group, own, HigherRank{});
    const auto block = b.reduce(nothing, own, HigherRank{});
    b.threads([&](int t, NoShared&) {
      of_group[base + t] = group[t];
      of_block[base + t] = block;
    });
  }
};

template <class Rank, int kWidth>
void check_ranks() {
  using Limits = std::numeric_limits<Rank>;
  Stream stream(0);
  constexpr int kBlocks = 40, kThreads = 256;
  std::vector<Ranked<Rank>> x;
  uint32_t state = 7;
  for (int i = 0; i < kBlocks * kThreads; ++i) {
    state = state * 1664525u + 1013904223u;
    const Rank few[] = {Limits::min(), Limits::max(), -1, 0, Rank(Limits::max() / 3 * 2)};
    // Blocks of which all are the lowest, of which all have few ranks, and of which hardly two are equal.
    const int block = i / kThreads;
    const Rank rank = block == 0 ? Limits::min() : block % 2 ? few[state >> 20 & 1] : Rank(int32_t(state));
    x.push_back({block == 1 ? few[(state >> 20) % 5] : rank, int32_t(state << 7) >> 9});
  }
  DeviceArray<Ranked<Rank>> in(x), groups(x.size()), blocks(x.size());
  block_kernel<NoShared>(stream, {kBlocks, kThreads},
                         FindHighest<Rank, kWidth>{in.data(), groups.data(), blocks.data()});
  const auto of_group = groups.download(stream), of_block = blocks.download(stream);
  const auto expect = [&](const Ranked<Rank>& seen, size_t i, size_t width) {
    const auto first = x.begin() + std::ptrdiff_t(i / width * width);
    const auto most = *std::max_element(first, first + std::ptrdiff_t(width), [](const auto& a, const auto& b) {
      return a.rank < b.rank || (a.rank == b.rank && a.place < b.place);
    });
    EXPECT_TRUE(seen.rank == most.rank && seen.place == most.place) << width << " wide, at " << i;
  };
  for (size_t i = 0; i < x.size(); ++i) {
    expect(of_group[i], i, kWidth);
    expect(of_block[i], i, kThreads);
  }
}

TEST(Ranked, TheHighestIsFound) {
  check_ranks<int32_t, 32>();
  check_ranks<int32_t, 4>();
  check_ranks<int64_t, 32>();
  check_ranks<int64_t, 2>();
}

}  // namespace encore::device::tests
