#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kCounted = R"(in x: bool[n, 8]
const last: i64[1] = 1
const zero: i64[] = 0
i: i64[n, 8] = Cast(x) {to = 7}
s: i64[n] = ReduceSum(i, last) {keepdims = 0}
y: bool[n] = Greater(s, zero)  # "any"
out y
)";

TEST(Any, IsTheLargest) {
  EXPECT_NE(after("any", kCounted).find(R"(y: bool[n] = ReduceMax(x, last) {keepdims = 0}  # "any")"),
            std::string::npos)
      << after("any", kCounted);
  EXPECT_NE(after("any", replaced(replaced(kCounted, "(i, last)", "(i)"), "const last: i64[1] = 1\n", ""))
                .find("ReduceMax(x) {keepdims = 0}"),
            std::string::npos);
}
TEST(Any, OthersAreCounted) {
  const auto stays = [](const char* part, const char* by) { expect_stays("any", kCounted, part, by); };
  stays("zero: i64[] = 0", "zero: i64[] = 1");
  stays("zero: i64[] = 0", "zero: i64[1, 1] = 0");
  stays("in x: bool", "in x: i32");
  stays("ReduceSum(i, last)", "ReduceSum@11(i, last)");
  stays("Greater(s, zero)", "Greater(zero, s)");
  stays("out y", "out y\nout s");
  stays("const last: i64[1] = 1", "in last: i64[1]");
}

// As torch.export has it.
constexpr const char* kLargest = R"(in x: bool[n, 8]
i: i64[n, 8] = Cast(x) {to = 7}
m: i64[] = ReduceMax@18(i) {keepdims = 0}
y: bool[] = Cast(m) {to = 9}  # "any"
out y
)";

TEST(Any, IsWhatTheLargestNumberIs) {
  EXPECT_EQ(after("any", kLargest), R"(in x: bool[n, 8]
y: bool[] = ReduceMax(x) {keepdims = 0}  # "any"
out y
)");
  const std::string sum = replaced(kLargest, "ReduceMax@18", "ReduceSum");
  EXPECT_EQ(after("any", sum), after("any", kLargest));
  const std::string floats = replaced(replaced(kLargest, "i: i64", "i: f32"), "to = 7", "to = 1");
  EXPECT_EQ(after("any", replaced(floats, "m: i64", "m: f32")), after("any", kLargest));
}
TEST(Any, OthersStayNumbers) {
  const auto stays = [](const char* part, const char* by) { expect_stays("any", kLargest, part, by); };
  stays("y: bool[] = Cast(m) {to = 9}", "y: i32[] = Cast(m) {to = 6}");
  stays("ReduceMax@18", "ReduceMin@18");
  stays("in x: bool", "in x: i32");
  stays("out y", "out y\nout m");
  stays("out y", "out y\nout i");
}

constexpr const char* kInfinite = R"(in x: f16[n, 8]
i: bool[n, 8] = IsInf(x)  # "is"
y: bool[] = ReduceMax(i) {keepdims = 0}  # "any"
out y
)";

TEST(AnyOdd, IsAStep) {
  EXPECT_EQ(after("any_odd", kInfinite), R"(in x: f16[n, 8]
y: bool[] = encore.Any(x) {keepdims = 0, nan = 0}  # "is and any"
out y
)");
  EXPECT_NE(after("any_odd", replaced(kInfinite, "IsInf(x)", "IsNaN(x)")).find("nan = 1}"), std::string::npos);
  EXPECT_NE(after("any_odd", replaced(kInfinite, "IsInf(x)", "IsInf(x) {detect_negative = 0}"))
                .find("{detect_negative = 0, keepdims = 0, nan = 0}"),
            std::string::npos);
}
TEST(AnyOdd, IsOfAllDimensions) {
  const std::string each = replaced(replaced(kInfinite, "ReduceMax(i)", "ReduceMax(i, axes)"), "f16[n, 8]\n",
                                    "f16[n, 8]\nconst axes: i64[2] = [-1, 0]\n");
  EXPECT_NE(after("any_odd", each).find("encore.Any(x)"), std::string::npos);
  EXPECT_NE(after("any_odd", replaced(kInfinite, "keepdims = 0", "axes = [0, 1], keepdims = 0")).find("encore.Any(x)"),
            std::string::npos);
  expect_stays("any_odd", each, "i64[2] = [-1, 0]", "i64[1] = [-1]");
  expect_stays("any_odd", each, "const axes: i64[2] = [-1, 0]", "in axes: i64[2]");
  expect_stays("any_odd", kInfinite, "keepdims = 0", "keepdims = 0, noop_with_empty_axes = 1");
}
TEST(AnyOdd, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("any_odd", kInfinite, part, by); };
  stays("ReduceMax", "ReduceMin");
  stays("in x: f16", "in x: f64");
  stays("out y", "out y\nout i");
  stays("IsInf(x)", "Not(x)");
}

}  // namespace
}  // namespace encore::fuse::tests
