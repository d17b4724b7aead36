#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// The scale of attention, as torch's exporter computes it where the batch is any.
constexpr const char* kScale = R"(in x: f16[n, 4, 16]
const last: i64[1] = [-1]
const end: i64[1] = [9223372036854775807]
const first: i64[1] = [0]
const one: f16[1] = [1.0]
shape: i64[3] = Shape(x)
size: i64[1] = Slice(shape, last, end, first)
float: f16[1] = Cast(size) {to = 10}
root: f16[1] = Sqrt(float)
scale: f16[1] = Div(one, root)
half: f16[1] = Sqrt(scale)
y: f16[n, 4, 16] = Mul(x, half)
out y
)";

TEST(KnownNumbers, OfDimensionsThatTheModelTells) {
  const std::string made = after("known_numbers", kScale);
  EXPECT_NE(made.find("const half: f16[1] = [0.5]"), made.npos) << made;
  EXPECT_EQ(made.find("Sqrt"), made.npos) << made;
  EXPECT_EQ(made.find("Shape"), made.npos) << made;
}

// torch's `size ** -0.5`.
TEST(KnownNumbers, OfConstantsToAPower) {
  const std::string made = after("known_numbers", R"(in x: f16[n, 4]
const size: f16[] = 16.0
const exponent: f16[] = -0.5
scale: f16[] = Pow(size, exponent)
y: f16[n, 4] = Mul(x, scale)
out y
)");
  EXPECT_NE(made.find("const scale: f16[] = 0.25"), made.npos) << made;
  EXPECT_EQ(made.find("Pow"), made.npos) << made;
}

// A third of the columns, as torch's older exporter cuts them where the batch is any.
TEST(KnownNumbers, IntegersOfDimensions) {
  constexpr const char* kThird = R"(in x: f16[n, 12, 7]
const first: i64[1] = [0]
const axis: i64[1] = [1]
const more: i64[1] = [2]
const parts: i64[1] = [3]
shape: i64[3] = Shape(x)
size: i64[1] = Gather(shape, axis) {axis = 0}
above: i64[1] = Add(size, more)
end: i64[1] = Div(above, parts)
y: f16[n, 4, 7] = Slice(x, first, end, axis)
out y
)";
  const std::string made = after("known_numbers", kThird);
  EXPECT_NE(made.find("const end: i64[1] = [4]"), made.npos) << made;
  EXPECT_EQ(made.find("Shape"), made.npos) << made;
  expect_stays("known_numbers", kThird, "in x: f16[n, 12, 7]\n", "in x: f16[n, m, 7]\n");
}

// Heads, as torch's older exporter asks for them where batch and sequence are any.
constexpr const char* kTarget = R"(in x: f16[n, m, 12]
const zero: i64[1] = [0]
const one: i64[1] = [1]
const heads: i64[1] = [3]
const size: i64[1] = [4]
shape: i64[3] = Shape(x)
batch: i64[1] = Gather(shape, zero) {axis = 0}
rows: i64[1] = Gather(shape, one) {axis = 0}
target: i64[4] = Concat(batch, rows, heads, size) {axis = 0}
y: f16[n, m, 3, 4] = Reshape(x, target) {allowzero = 1}  # "heads"
out y
)";

TEST(KnownTargets, AreConstants) {
  EXPECT_EQ(after("known_targets", kTarget), R"(in x: f16[n, m, 12]
const target: i64[4] = [0, 0, 3, 4]
y: f16[n, m, 3, 4] = Reshape(x, target)  # "heads"
out y
)");
  const std::string turned = replaced(replaced(kTarget, "y: f16[n, m, 3, 4]", "y: f16[m, n, 3, 4]"),
                                      "Concat(batch, rows,", "Concat(rows, batch,");
  EXPECT_EQ(after("known_targets", turned), text_of(plan_from(turned)));
  // Of no sequences any number of rows has no elements.
  const std::string fewer = replaced(replaced(kTarget, "y: f16[n, m, 3, 4]", "y: f16[n, l, 4]"),
                                     "Concat(batch, rows, heads, size)", "Concat(batch, rest, size)");
  const std::string left = replaced(replaced(fewer, "target: i64[4]", "target: i64[3]"), "shape: i64[3]",
                                    "in l: i64[l]\nof_l: i64[1] = Shape(l)\nrest: i64[1] = Gather(of_l, zero) {axis = "
                                    "0}\nshape: i64[3]");
  EXPECT_EQ(after("known_targets", left), text_of(plan_from(left)));
}

TEST(KnownNumbers, NotOfOthers) {
  const auto stays = [](const char* part, const char* by) { expect_stays("known_numbers", kScale, part, by); };
  stays("in x: f16[n, 4, 16]\n", "in x: f16[n, 4, m]\n");
  stays("const last: i64[1] = [-1]", "const last: i64[1] = [-2]");
}

}  // namespace
}  // namespace encore::fuse::tests
