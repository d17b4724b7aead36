#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kCount = R"(in mask: i64[n, keys]
const axes: i64[1] = [1]
const one: i64[1] = [1]
count: i64[n] = ReduceSum(mask, axes) {keepdims = 0}  # "count"
place: i64[n] = Sub(count, one)
last: i32[n] = Cast(place) {to = 6}  # "cast"
out last
)";

TEST(LastKeys, AreCountedInOneStep) {
  EXPECT_EQ(after("last_keys", kCount), R"(in mask: i64[n, keys]
last: i32[n] = encore.LastKeys(mask) {less = 1}  # "count and cast"
out last
)");
}

TEST(LastKeys, ComeFirst) {
  EXPECT_EQ(after("last_keys", R"(in mask: i64[n, keys]
in x: f16[n]
const axes: i64[1] = [1]
const one: i64[1] = [1]
y: f16[n] = Neg(x)
more: i64[n, keys] = Abs(mask)
count: i64[n] = ReduceSum(more, axes) {keepdims = 0}  # "count"
place: i64[n] = Sub(count, one)
last: i32[n] = Cast(place) {to = 6}  # "cast"
out y
out last
)"),
            R"(in mask: i64[n, keys]
in x: f16[n]
more: i64[n, keys] = Abs(mask)
last: i32[n] = encore.LastKeys(more) {less = 1}  # "count and cast"
y: f16[n] = Neg(x)
out y
out last
)");
}

TEST(LastKeys, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("last_keys", kCount, part, by); };
  stays("mask: i64[n, keys]", "mask: i32[n, keys]");
  stays("mask: i64[n, keys]", "mask: i64[n, keys, 1]");
  stays("axes: i64[1] = [1]", "axes: i64[1] = [0]");
  stays("const axes: i64[1] = [1]", "in axes: i64[1]");
  stays("const one: i64[1] = [1]", "in one: i64[1]");
  stays("const one: i64[1] = [1]", "const one: i64[2] = [1, 2]");
  stays("keepdims = 0", "keepdims = 1");
  stays("Sub(count, one)", "Sub(one, count)");
  stays("Sub(count, one)", "Sub@6(count, one)");
  stays("last: i32[n]", "last: f32[n]");
  stays("out last", "out last\nout place");
  stays("out last", "out last\nout count");
  stays("place: i64[n]", "host place: i64[n]");
}

}  // namespace
}  // namespace encore::fuse::tests
