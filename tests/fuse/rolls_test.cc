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

constexpr const char* kPairs = R"(in x: f16[n, 3, 8]
const zero: i64[1] = 0
const one: i64[1] = 1
const most: i64[1] = 9223372036854775807
const two: i64[1] = 2
const last: i64[1] = -1
const flat: i64[3] = [0, 0, 8]
e: f16[n, 3, 4] = Slice(x, zero, most, last, two)
o: f16[n, 3, 4] = Slice(x, one, most, last, two)
m: f16[n, 3, 4] = Neg(o)
a: f16[n, 3, 4, 1] = Unsqueeze(m, last)
b: f16[n, 3, 4, 1] = Unsqueeze(e, last)
c: f16[n, 3, 4, 2] = Concat(a, b) {axis = -1}  # "stack"
y: f16[n, 3, 8] = Reshape(c, flat)
out y
)";

TEST(TurnedPairs, AreRolledWithSigns) {
  const std::string made = after("turned_pairs", kPairs);
  EXPECT_NE(made.find(R"("x in pairs": f16[n, 3, 4, 2] = Reshape(x, "x's pairs")  # "stack"
"x turned": f16[n, 3, 4, 2] = encore.Roll("x in pairs") {axes = [-1], shifts = [1]}  # "stack"
c: f16[n, 3, 4, 2] = Mul("x turned", "x's signs")  # "stack"
y: f16[n, 3, 8] = Reshape(c, flat)
)"),
            made.npos)
      << made;
  EXPECT_NE(made.find(R"("x's pairs": i64[4] = [0, 0, 4, 2])"), made.npos) << made;
  EXPECT_NE(made.find(R"("x's signs": f16[2] = [-1.0, 1.0])"), made.npos) << made;
  EXPECT_EQ(made.find("Slice"), made.npos) << made;
}

TEST(TurnedPairs, InTheOtherOrder) {
  const std::string text =
      replaced(replaced(kPairs, "m: f16[n, 3, 4] = Neg(o)\na: f16[n, 3, 4, 1] = Unsqueeze(m, last)",
                        "m: f16[n, 3, 4, 1] = Unsqueeze(o, last)\na: f16[n, 3, 4, 1] = Neg(m)"),
               "{axis = -1}", "{axis = 3}");
  EXPECT_NE(after("turned_pairs", text).find("encore.Roll("), text.npos);
}

TEST(TurnedPairs, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("turned_pairs", kPairs, part, by); };
  stays("Slice(x, one, most", "Slice(x, zero, most");
  stays("Slice(x, zero, most", "Slice(x, one, most");
  stays("two: i64[1] = 2", "two: i64[1] = 1");
  stays("most: i64[1] = 9223372036854775807", "most: i64[1] = 6");
  stays("Concat(a, b)", "Concat(b, a)");
  stays("axis = -1}", "axis = -2}");
  stays("out y", "out y\nout m");
  stays("in x: f16[n, 3, 8]", "in x: f16[n, 3, 7]");
  stays("last: i64[1] = -1", "last: i64[1] = -2");
}

}  // namespace
}  // namespace encore::fuse::tests
