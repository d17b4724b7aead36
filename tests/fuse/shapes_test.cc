#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kTurned = R"(in x: f16[n, 3, h, w]
t: f16[n, h, w, 3] = Transpose(x) {perm = [0, 2, 3, 1]}
s: i64[4] = Shape(t)  # "shape"
out s
)";

TEST(Shapes, AreReadBeforeAnythingIsTurned) {
  EXPECT_EQ(after("shapes", kTurned), R"(in x: f16[n, 3, h, w]
const "shape's order": i64[4] = [0, 2, 3, 1]
"shape before it is turned": i64[4] = Shape(x)  # "shape"
host s: i64[4] = Gather("shape before it is turned", "shape's order")  # "shape"
out s
)");
}

TEST(Shapes, WhatIsTurnedForOthersTooIsStillMade) {
  const std::string made =
      after("shapes", replaced(kTurned, "out s\n", "y: f16[n, h, w, 3] = Relu(t)\nout s\nout y\n"));
  EXPECT_NE(made.find("Shape(x)"), made.npos) << made;
  EXPECT_NE(made.find("t: f16[n, h, w, 3] = Transpose(x)"), made.npos) << made;
}

TEST(Shapes, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("shapes", kTurned, part, by); };
  stays("Shape(t)", "Shape@15(t) {start = 1}");
  stays("Shape(t)", "Shape@15(t) {end = 2}");
  stays("Shape(t)", "Relu(t)");
  stays("Transpose(x) {perm = [0, 2, 3, 1]}", "Relu(x)");
  stays(" {perm = [0, 2, 3, 1]}", "");
  stays("perm = [0, 2, 3, 1]", "perm = [0, 2, 4, 1]");  // which the node refuses
  stays("perm = [0, 2, 3, 1]", "perm = [0, 2, 3, -3]");
  stays("t: f16[n, h, w, 3] = Tr", "elsewhere t: f16[n, h, w, 3] = Tr");
}

}  // namespace
}  // namespace encore::fuse::tests
