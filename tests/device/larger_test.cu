// The larger of numbers, alone and of halves in pairs.
#include "device/larger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/pair.h"
#include "kernels.h"

namespace encore::device::tests {

// Of each pack the largest and its order, the smallest, found with each number flipped and with words, the larger of
// each number and the one as far from the other end; and bits for each number that is not below its neighbour, and for
// each that is at least as large; and of two such pairs the smaller numbers and the lesser halves, and of one the
// signs.
template <class T>
struct LookAtPacks {
  static constexpr int kPack = 8;
  const T* x;
  T *most, *least, *least_of_words, *both;
  OrderOf<T>* order;
  uint32_t *not_below, *above_or_same, *smaller, *lesser, *signs;
  DEVICE_FN void operator()(int64_t i) const {
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
    const Bits sign = Bits(Bits(1) << (8 * sizeof(T) - 1)), flip = std::is_integral_v<T> ? Bits(~Bits(0)) : sign;
    const Pack<T, kPack> pack = load_pack<kPack>(x + i * kPack, true);
    most[i] = largest_or_nan(pack);
    Pack<T, kPack> reversed;
    UNROLL for (int j = 0; j < kPack; ++j) reversed.at[j] = pack.at[kPack - 1 - j];
    store_pack(both + i * kPack, larger_or_nan(pack, reversed), true);
    least[i] = std::bit_cast<T>(Bits(std::bit_cast<Bits>(largest_or_nan(flipped(pack, flip))) ^ flip));
    const uint32_t word = sizeof(T) == 2 ? 0x80008000u : flip;
    least_of_words[i] = std::bit_cast<T>(Bits(std::bit_cast<Bits>(largest_or_nan(flipped(pack, word))) ^ flip));
    order[i] = order_of(largest_or_nan(pack));
    not_below[i] = above_or_same[i] = 0;
    if constexpr (kIsHalf<T>) {
      const Pack<T, 2> a{pack.at[0], pack.at[2]}, b{pack.at[1], pack.at[3]};
      not_below[i] = not_smaller(a, b);
      above_or_same[i] = at_least(a, b);
      smaller[i] = std::bit_cast<uint32_t>(smaller_number(a, b));
      lesser[i] = least_of_pairs(std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b));
      signs[i] = signs_of_pair(std::bit_cast<uint32_t>(a));
    }
  }
};

template <class T>
class LargerOf : public ::testing::Test {};
using Numbers = ::testing::Types<float, Half, BFloat16, int32_t>;
TYPED_TEST_SUITE(LargerOf, Numbers);

TYPED_TEST(LargerOf, APackIsFound) {
  using T = TypeParam;
  constexpr int kPack = LookAtPacks<T>::kPack, kPacks = 400;
  constexpr float kSpecial[] = {0, -0.f, 1, -1, INFINITY, -INFINITY, NAN, 65504};
  Stream stream(0);
  std::vector<T> x;
  uint32_t state = 7;
  for (int i = 0; i < kPacks * kPack; ++i) {
    state = state * 1664525u + 1013904223u;
    float value = float(int32_t(state) >> 20) / 8;
    if (!std::is_integral_v<T> && state % 16 == 3) value = kSpecial[(state >> 8) % 8];
    x.push_back(T(value));
  }
  DeviceArray<T> in(x), most(kPacks), least(kPacks), same(kPacks), both(kPacks * kPack);
  DeviceArray<OrderOf<T>> order(kPacks);
  DeviceArray<uint32_t> bits(kPacks), ordered_bits(kPacks), smaller(kPacks), lesser(kPacks), signs(kPacks);
  for_each_index(stream, kPacks,
                 LookAtPacks<T>{in.data(), most.data(), least.data(), same.data(), both.data(), order.data(),
                                bits.data(), ordered_bits.data(), smaller.data(), lesser.data(), signs.data()});
  const auto mosts = most.download(stream), leasts = least.download(stream), sames = same.download(stream);
  const auto larger_ones = both.download(stream);
  const auto orders = order.download(stream);
  const auto seen = bits.download(stream), seen_ordered = ordered_bits.download(stream);
  const auto smaller_ones = smaller.download(stream), lesser_ones = lesser.download(stream);
  const auto sign_bits = signs.download(stream);
  for (int p = 0; p < kPacks; ++p) {
    const T* const pack = x.data() + p * kPack;
    double high = double(pack[0]), low = high;
    bool nan = false;
    for (int j = 0; j < kPack; ++j) {
      nan |= std::isnan(double(pack[j]));
      high = std::max(high, double(pack[j]));
      low = std::min(low, double(pack[j]));
    }
    if (nan) {
      EXPECT_TRUE(std::isnan(double(mosts[p])) && std::isnan(double(leasts[p]))) << p;
    } else {
      EXPECT_EQ(double(mosts[p]), high) << p;
      EXPECT_EQ(double(leasts[p]), low) << p;
      EXPECT_EQ(double(sames[p]), low) << p;
    }
    // As the numbers compare, so do their orders: with those of any other pack, and with NaN above all.
    const double one = double(mosts[p]), other = double(mosts[(p * 7 + 1) % kPacks]);
    const auto ordered = [](auto a, auto b) { return a < b ? -1 : int(b < a); };
    EXPECT_EQ(ordered(orders[p], orders[(p * 7 + 1) % kPacks]), std::isnan(one) || std::isnan(other)
                                                                    ? int(std::isnan(one)) - int(std::isnan(other))
                                                                    : ordered(one, other))
        << p;
    for (int j = 0; j < kPack; ++j) {
      const double one = double(pack[j]), other = double(pack[kPack - 1 - j]);
      const double got = double(larger_ones[size_t(p * kPack + j)]);
      EXPECT_TRUE(std::isnan(one) || std::isnan(other) ? std::isnan(got) : got == std::max(one, other)) << p;
    }
    if (!kIsHalf<T>) continue;
    const auto wanted = [&](int a, int b) { return double(pack[a]) < double(pack[b]) ? 0u : 0xffffu; };
    EXPECT_EQ(seen[p], wanted(0, 1) | wanted(2, 3) << 16) << p;
    const auto at_least = [&](int a, int b) { return double(pack[a]) >= double(pack[b]) ? 0xffffu : 0u; };
    EXPECT_EQ(seen_ordered[p], at_least(0, 1) | at_least(2, 3) << 16) << p;
    if constexpr (sizeof(T) == 2) {
      for (int half = 0; half < 2; ++half) {
        const T a = pack[2 * half], b = pack[2 * half + 1];
        const double one = double(a), other = double(b);
        const double got = double(std::bit_cast<T>(uint16_t(smaller_ones[p] >> 16 * half)));
        if (std::isnan(one) && std::isnan(other))
          EXPECT_TRUE(std::isnan(got)) << p;
        else
          EXPECT_EQ(got, std::fmin(one, other)) << p;
        EXPECT_EQ(sign_bits[p] >> 16 * half & 0xffff, a.bits & 0x8000 ? 0xffffu : 0u) << p;
        EXPECT_EQ(lesser_ones[p] >> 16 * half & 0xffff, std::min(a.bits, b.bits)) << p;
      }
    }
  }
}

}  // namespace encore::device::tests
