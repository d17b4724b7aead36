// Warps: what tiles hold, products, transposition, reductions; each warp apart from the others.
#include "device/warp.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "device/transform.h"
#include "kernels.h"

namespace encore::device::tests {
namespace {

constexpr int kWarps = 3;

}  // namespace

// sums = left * right + 1, elements gathered and scattered by their rows and columns.
template <class T>
struct TileProducts {
  struct Shared {
    int nothing;
  };
  const T *left, *right;  // [warp, 16, 16], [warp, 16, 8]
  float* sums;            // [warp, 16, 8]
  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    for_each_warp(b, [&](const Warp& warp, Shared&) {
      PerThread<FragmentC, 32> tile;
      warp.lanes([&](int lane) { tile[lane] = {{1, 1, 1, 1}}; });
      warp.template mma<T>([&](int lane) -> FragmentC& { return tile[lane]; },
                           [&](int lane) {
                             FragmentA of;
                             const T* const from = left + warp.index() * 256;
                             const int g = lane / 4, two = lane % 4 * 2;
                             UNROLL for (int i = 0; i < 4; ++i) {
                               const int at = (g + i % 2 * 8) * 16 + i / 2 * 8 + two;
                               of.at[i] = as_pair<T>(float(from[at]), float(from[at + 1]));
                             }
                             return of;
                           },
                           [&](int lane) {
                             FragmentB of;
                             const T* const from = right + warp.index() * 128;
                             const int g = lane / 4, two = lane % 4 * 2;
                             UNROLL for (int i = 0; i < 2; ++i) {
                               const int at = (i * 8 + two) * 8 + g;
                               of.at[i] = as_pair<T>(float(from[at]), float(from[at + 8]));
                             }
                             return of;
                           });
      warp.lanes([&](int lane) {
        UNROLL for (int i = 0; i < 4; ++i)
            sums[warp.index() * 128 + (lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = tile[lane].at[i];
      });
    });
  }
};

// What lanes have, before and after.
struct Exchange {
  struct Shared {
    int nothing;
  };
  const uint32_t* x;
  uint32_t *transposed, *reduced;
  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    for_each_warp(b, [&](const Warp& warp, Shared&) {
      const int first = 32 * warp.index();
      PerThread<uint32_t, 32> pair, sum;
      warp.lanes([&](int lane) { pair[lane] = sum[lane] = x[first + lane]; });
      warp.transpose([&](int lane) -> uint32_t& { return pair[lane]; });
      warp.template reduce_columns<4>([&](int lane) -> uint32_t& { return sum[lane]; },
                                      [](uint32_t a, uint32_t c) { return a + c; });
      warp.lanes([&](int lane) {
        transposed[first + lane] = pair[lane];
        reduced[first + lane] = sum[lane];
      });
    });
  }
};

// What all lanes know of all, and what two of them exchange.
struct Gather {
  struct Shared {
    int nothing;
  };
  const uint64_t* x;
  uint64_t *least, *least_low, *exchanged;  // exchanged: two for each lane
  int* sum;
  uint64_t *votes, *from;
  int* before;
  uint16_t* most;
  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    for_each_warp(b, [&](const Warp& warp, Shared&) {
      const int first = 32 * warp.index();
      const auto value = [&](int lane) { return x[first + lane]; };
      const uint64_t all = warp.least(value);
      const uint16_t low = warp.least([&](int lane) { return uint16_t(value(lane)); });
      const int total = warp.sum([&](int lane) { return int(value(lane) % 1000) - 500; });
      const uint32_t odd = warp.votes([&](int lane) { return value(lane) % 2 != 0; });
      const uint64_t of_one = warp.from(first / 32 + 7, value);
      const uint16_t high = warp.most([&](int lane) { return uint16_t(value(lane)); });
      PerThread<int, 32> exclusive_sum;
      warp.apart([&](int lane) { exclusive_sum[lane] = int(value(lane) % 1000) - 500; });
      warp.sums_before([&](int lane) -> int& { return exclusive_sum[lane]; });
      PerThread<Pack<uint64_t, 2>, 32> two;
      warp.lanes([&](int lane) { two[lane] = {value(lane), value(lane) + 1}; });
      warp.template exchange<2>(5, [&](int lane) { return two[lane].at; });
      warp.lanes([&](int lane) {
        least[first + lane] = all;
        least_low[first + lane] = low;
        sum[first + lane] = total;
        votes[first + lane] = odd;
        from[first + lane] = of_one;
        before[first + lane] = exclusive_sum[lane];
        most[first + lane] = high;
        for (int i = 0; i < 2; ++i) exchanged[2 * (first + lane) + i] = two[lane].at[i];
      });
    });
  }
};

// Halves of words.
struct Halves {
  uint32_t* y;
  DEVICE_FN void operator()(int64_t) const {
    y[0] = low_halves(0x11112222u, 0x33334444u);
    y[1] = high_halves(0x11112222u, 0x33334444u);
    y[2] = as_pair<Half>(1.f, -2.f);
    y[3] = as_pair<BFloat16>(1.f, -2.f);
  }
};

namespace {

template <class T>
void expect_products() {
  std::vector<T> left, right;
  for (int i = 0; i < kWarps * 256; ++i) left.push_back(T(float(i * 7 % 23 - 11)));
  for (int i = 0; i < kWarps * 128; ++i) right.push_back(T(float(i * 5 % 19 - 9)));
  const Stream stream(0);
  DeviceArray<T> a(left), b(right);
  DeviceArray<float> sums(size_t(kWarps) * 128);
  block_kernel<typename TileProducts<T>::Shared>(stream, {1, 32 * kWarps},
                                                 TileProducts<T>{a.data(), b.data(), sums.data()});
  const std::vector<float> got = sums.download(stream);
  for (int w = 0; w < kWarps; ++w)
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 8; ++j) {
        float want = 1;
        for (int k = 0; k < 16; ++k)
          want += float(left[size_t(w * 256 + i * 16 + k)]) * float(right[size_t(w * 128 + k * 8 + j)]);
        EXPECT_EQ(got[size_t(w * 128 + i * 8 + j)], want) << "warp " << w << " [" << i << "," << j << "]";
      }
}

TEST(Warp, MultipliesTilesOfHalf) { expect_products<Half>(); }
TEST(Warp, MultipliesTilesOfBFloat16) { expect_products<BFloat16>(); }

TEST(Warp, TransposesAndReduces) {
  std::vector<uint32_t> x;
  for (uint32_t i = 0; i < 32 * kWarps; ++i) x.push_back(i * 2 | (i * 2 + 1) << 16);
  const Stream stream(0);
  DeviceArray<uint32_t> in(x), transposed(x.size()), reduced(x.size());
  block_kernel<Exchange::Shared>(stream, {1, 32 * kWarps}, Exchange{in.data(), transposed.data(), reduced.data()});
  const std::vector<uint32_t> turned = transposed.download(stream), sums = reduced.download(stream);
  const auto element = [](const std::vector<uint32_t>& of, size_t warp, size_t row, size_t column) {
    return of[warp * 32 + row * 4 + column / 2] >> column % 2 * 16 & 0xffffu;
  };
  for (size_t warp = 0; warp < kWarps; ++warp) {
    for (size_t i = 0; i < 8; ++i)
      for (size_t j = 0; j < 8; ++j) EXPECT_EQ(element(turned, warp, i, j), element(x, warp, j, i));
    for (size_t lane = 0; lane < 32; ++lane) {
      uint32_t want = 0;
      for (size_t other = lane % 4; other < 32; other += 4) want += x[warp * 32 + other];
      EXPECT_EQ(sums[warp * 32 + lane], want);
    }
  }
}

TEST(Warp, LanesKnowWhatIsLeastAndTheSumAndExchange) {
  std::vector<uint64_t> x;
  for (uint64_t i = 0; i < 32 * kWarps; ++i) x.push_back((i * 7919 % 5 + 3) << 32 | (i * 104729 + 11) % 65521);
  const Stream stream(0);
  DeviceArray<uint64_t> in(x), least(x.size()), least_low(x.size()), exchanged(2 * x.size());
  DeviceArray<int> sum(x.size()), before(x.size());
  DeviceArray<uint16_t> most(x.size());
  DeviceArray<uint64_t> votes(x.size()), from(x.size());
  block_kernel<Gather::Shared>(stream, {1, 32 * kWarps},
                               Gather{in.data(), least.data(), least_low.data(), exchanged.data(), sum.data(),
                                      votes.data(), from.data(), before.data(), most.data()});
  const auto leasts = least.download(stream), lows = least_low.download(stream), others = exchanged.download(stream);
  const std::vector<int> sums = sum.download(stream), befores = before.download(stream);
  const std::vector<uint16_t> highs = most.download(stream);
  const auto odd = votes.download(stream), of_one = from.download(stream);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto warp = x.begin() + int64_t(i / 32 * 32);
    int total = 0;
    uint64_t low = 0xffff, high = 0, bits = 0;
    for (int lane = 0; lane < 32; ++lane) {
      if (size_t(lane) == i % 32) EXPECT_EQ(befores[i], total);
      total += int(warp[lane] % 1000) - 500;
      low = std::min(low, warp[lane] & 0xffff);
      high = std::max(high, warp[lane] & 0xffff);
      bits |= (warp[lane] & 1) << lane;
    }
    EXPECT_EQ(leasts[i], *std::min_element(warp, warp + 32));
    EXPECT_EQ(lows[i], low);
    EXPECT_EQ(highs[i], high);
    EXPECT_EQ(sums[i], total);
    EXPECT_EQ(odd[i], bits);
    EXPECT_EQ(of_one[i], warp[int64_t(i / 32 + 7)]);
    for (size_t j = 0; j < 2; ++j) EXPECT_EQ(others[2 * i + j], x[i ^ 5] + j);
  }
}

TEST(Warp, HalvesAreJoinedToWords) {
  const Stream stream(0);
  DeviceArray<uint32_t> y(4);
  for_each_index(stream, 1, Halves{y.data()});
  EXPECT_EQ(y.download(stream), (std::vector<uint32_t>{0x44442222u, 0x33331111u, 0xc0003c00u, 0xc0003f80u}));
}

}  // namespace
}  // namespace encore::device::tests
