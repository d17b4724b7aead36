#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kHalves = R"(in x: f32[n, 8]
const zero: i64[1] = 0
const three: i64[1] = 3
const end: i64[1] = 9223372036854775807
const last: i64[1] = -1
a: f32[n, 5] = Slice@13(x, three, end, last)
b: f32[n, 3] = Slice@13(x, zero, three, last)
y: f32[n, 8] = Concat@13(a, b) {axis = -1}  # "turned"
out y
)";

TEST(Rolls, TwoPartsTheOtherWayRound) {
  EXPECT_EQ(after("rolls", kHalves), R"(in x: f32[n, 8]
y: f32[n, 8] = encore.Roll(x) {axes = [-1], shifts = [3]}  # "turned"
out y
)");
}

TEST(Rolls, APartIsNegated) {
  const std::string made = after("rolls", replaced(replaced(kHalves, "b: f32", "c: f32[n, 5] = Neg(a)\nb: f32"),
                                                   "Concat@13(a, b)", "Concat@13(c, b)"));
  EXPECT_EQ(made, R"(in x: f32[n, 8]
const "x's signs": f32[8] = [-1.0, -1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0]
"y before its signs": f32[n, 8] = encore.Roll(x) {axes = [-1], shifts = [3]}  # "turned"
y: f32[n, 8] = Mul("y before its signs", "x's signs")  # "turned"
out y
)");
}

TEST(Rolls, PartsOfASplit) {
  const std::string made = after("rolls", R"(in x: f16[n, 6, 4]
const sizes: i64[2] = [4, 2]
a: f16[n, 4, 4], b: f16[n, 2, 4] = Split@13(x, sizes) {axis = 1}
y: f16[n, 6, 4] = Concat@13(b, a) {axis = 1}
out y
)");
  EXPECT_NE(made.find("y: f16[n, 6, 4] = encore.Roll(x) {axes = [-2], shifts = [4]}"), std::string::npos) << made;
}

TEST(Rolls, AlongTwoAxes) {
  const std::string made = after("rolls", R"(in x: f16[n, 6, 4]
a: f16[n, 4, 4], b: f16[n, 2, 4] = Split@13(x, _) {axis = 1}
t: f16[n, 6, 4] = Concat@13(b, a) {axis = 1}
c: f16[n, 6, 1], d: f16[n, 6, 3] = Split@13(t, _) {axis = 2}
y: f16[n, 6, 4] = Concat@13(d, c) {axis = 2}
out y
)");
  EXPECT_EQ(made, R"(in x: f16[n, 6, 4]
y: f16[n, 6, 4] = encore.Roll(x) {axes = [-2, -1], shifts = [4, 1]}
out y
)");
}

TEST(Rolls, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("rolls", kHalves, part, by); };
  stays("Concat@13(a, b)", "Concat@13(b, a)");
  stays("Concat@13(a, b)", "Concat@13(a, b, b)");
  stays("Slice@13(x, zero, three, last)", "Slice@13(x, zero, three, zero)");
  stays("const zero: i64[1] = 0", "const zero: i64[1] = 1");
  stays("axis = -1", "axis = 0");
  stays("b: f32[n, 3] = Slice@13(x,", "z: f32[n, 8] = Relu(x)\nb: f32[n, 3] = Slice@13(z,");
  stays("in x: f32[n, 8]", "in x: i32[n, 8]");
  stays("in x: f32[n, 8]", "in x: f32[n, w]");
}

// Rotary embeddings as exporters spell them.
TEST(Rolls, AreReadByPrograms) {
  Plan plan = plan_from(R"(in x: f32[n, 8]
in cos: f32[n, 8]
in sin: f32[n, 8]
const zero: i64[1] = 0
const half: i64[1] = 4
const end: i64[1] = 8
const last: i64[1] = 1
a: f32[n, 4] = Slice@13(x, half, end, last)
c: f32[n, 4] = Neg(a)
b: f32[n, 4] = Slice@13(x, zero, half, last)
t: f32[n, 8] = Concat@13(c, b) {axis = 1}
l: f32[n, 8] = Mul(x, cos)
r: f32[n, 8] = Mul(t, sin)
y: f32[n, 8] = Add(l, r)
out y
)");
  rewrite(plan, {});
  const std::string made = text_of(plan);
  EXPECT_NE(made.find("roll x"), std::string::npos) << made;
  EXPECT_NE(made.find("along -1 by 4; "), std::string::npos) << made;
  EXPECT_EQ(plan.steps.size(), 1u) << made;
}

}  // namespace
}  // namespace encore::fuse::tests
