#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// Swin's, which makes four times as many channels of half as many rows and columns.
constexpr const char* kMerged = R"(in x: f16[n, 6, 4, 8]
const zero: i64[1] = 0
const one: i64[1] = 1
const two: i64[1] = 2
const end: i64[1] = 9223372036854775807
a: f16[n, 3, 4, 8] = Slice@13(x, zero, end, one, two)
b: f16[n, 3, 4, 8] = Slice@13(x, one, end, one, two)
a0: f16[n, 3, 2, 8] = Slice@13(a, zero, end, two, two)
b0: f16[n, 3, 2, 8] = Slice@13(b, zero, end, two, two)
a1: f16[n, 3, 2, 8] = Slice@13(a, one, end, two, two)
b1: f16[n, 3, 2, 8] = Slice@13(b, one, end, two, two)
y: f16[n, 3, 2, 32] = Concat@13(a0, b0, a1, b1) {axis = -1}  # "merged"
out y
)";

TEST(Patches, AreOneCopy) {
  EXPECT_EQ(after("patches", kMerged), R"(in x: f16[n, 6, 4, 8]
y: f16[n, 3, 2, 32] = encore.View(x) {steps = "reshape 0,3,2,2,2,8; transpose 0,1,3,4,2,5; reshape 0,3,2,32"}  # "merged"
out y
)");
}

TEST(Patches, InTheOtherOrder) {
  const std::string made = after("patches", replaced(kMerged, "(a0, b0, a1, b1)", "(a0, a1, b0, b1)"));
  EXPECT_NE(made.find("transpose 0,1,3,2,4,5"), made.npos) << made;
}

// YOLO's, of a Slice for each part, and of channels that are first.
TEST(Patches, OfChannelsFirst) {
  EXPECT_EQ(after("patches", R"(in x: f32[n, 3, 8, w]
const last: i64[1] = [2]
const begin: i64[1] = [0]
const next: i64[1] = [1]
const end: i64[1] = [8]
const by: i64[1] = [2]
a: f32[n, 3, 4, w] = Slice@13(x, begin, end, last, by)
b: f32[n, 3, 4, w] = Slice@13(x, next, end, last, by)
y: f32[n, 6, 4, w] = Concat@13(a, b) {axis = 1}
out y
)"),
            R"(in x: f32[n, 3, 8, w]
y: f32[n, 6, 4, w] = encore.View(x) {steps = "reshape 0,3,4,2,-1; transpose 0,3,1,2,4; reshape 0,6,4,-1"}
out y
)");
}

TEST(Patches, WhatOthersReadIsStillMade) {
  const std::string made = after("patches", std::string(kMerged) + "out b1\n");
  EXPECT_NE(made.find("encore.View(x)"), made.npos) << made;
  EXPECT_NE(made.find("b1: f16[n, 3, 2, 8] = Slice(b"), made.npos) << made;
  EXPECT_EQ(made.find("a1:"), made.npos) << made;
}

TEST(Patches, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("patches", kMerged, part, by); };
  stays("(a0, b0, a1, b1)", "(a0, b1, a1, b0)");
  stays("(a0, b0, a1, b1)", "(a0, b0, a1, a1)");
  stays("(a0, b0, a1, b1)", "(a0, b0, a1)");
  stays("(a0, b0, a1, b1)", "(a0, b0, a1, b1, a0, b0, a1, b1)");
  stays("(a0, b0, a1, b1)", "(a0, b0, a1, x)");
  stays("axis = -1", "axis = 2");
  stays("in x: f16[n, 6, 4, 8]", "in x: f16[n, 5, 4, 8]");
  stays("in x: f16[n, 6, 4, 8]", "in x: f16[n, h, 4, 8]");
  stays("in x: f16[n, 6, 4, 8]", "in x: f16");
  stays("const end: i64[1] = 9223372036854775807", "const end: i64[1] = 3");
  stays("const end: i64[1] = 9223372036854775807", "in end: i64[1]");
  stays("b: f16[n, 3, 4, 8] = Slice@13(x,", "z: f16[n, 6, 4, 8] = Relu(x)\nb: f16[n, 3, 4, 8] = Slice@13(z,");
}

}  // namespace
}  // namespace encore::fuse::tests
