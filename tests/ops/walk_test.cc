// Where operands of broadcasts and sums are found.
#include <gtest/gtest.h>

#include "ops/elementwise/broadcast.h"

namespace encore::ops {
namespace {

TEST(Walk, ReachesBeyondThirtyTwoBits) {
  constexpr int64_t kFar = int64_t(3) << 30;
  const std::vector<WalkedDim> rows{{3, {1, 0}}, {5, {kFar, 1}}}, more{{3, {1, 0}}, {5, {kFar, 1}}, {2, {2, kFar * 8}}};
  for (const auto& dims : {rows, more}) {
    const int64_t count = dims.size() == 2 ? 15 : 30;
    const Walk walk(dims, count);
    for (int64_t i = 0; i < count; ++i) {
      int64_t at[2];
      EXPECT_EQ(walk.find(i, at), 3 - i % 3);
      EXPECT_EQ(at[0], i % 3 + i / 3 % 5 * kFar + i / 15 * 2) << i << " of " << count;
      EXPECT_EQ(at[1], i / 3 % 5 + i / 15 * kFar * 8) << i << " of " << count;
    }
  }
}

}  // namespace
}  // namespace encore::ops
