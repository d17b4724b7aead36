#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "../device/on_device.h"
#include "ops/index/prefix_sum.h"

namespace encore::ops {
namespace {

using device::DeviceArray;

TEST(ExclusiveSum, OfAnyCount) {
  device::Stream stream(0);
  for (size_t count : {0, 1, 7, 1024, 8191, 8192, 8193, 100'000}) {
    std::vector<int64_t> numbers(count + 1);
    for (size_t i = 0; i < count; ++i) numbers[i] = int64_t(i * 7 % 13) << 30;
    DeviceArray<int64_t> sums(numbers);
    exclusive_sum(stream, sums.data(), int64_t(count));
    std::exclusive_scan(numbers.begin(), numbers.end(), numbers.begin(), int64_t(0));
    EXPECT_EQ(sums.download(stream), numbers) << count;
  }
}

}  // namespace
}  // namespace encore::ops
