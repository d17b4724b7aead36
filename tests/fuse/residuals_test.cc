#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kBlock = R"(in a: f16[n, s, 8]
in b: f16[n, s, 8]
const gamma: f16[8]
const beta: f16[8]
sum: f16[n, s, 8] = Add(a, b)  # "sum"
y: f16[n, s, 8] = LayerNormalization(sum, gamma, beta) {axis = -1, epsilon = 0.001}  # "norm"
out y
)";

TEST(Residuals, TheSumGoesWithItsNorm) {
  EXPECT_EQ(after("residuals", kBlock), R"(in a: f16[n, s, 8]
in b: f16[n, s, 8]
const gamma: f16[8]
const beta: f16[8]
y: f16[n, s, 8], _, _, _ = com.microsoft.SkipLayerNormalization(a, b, gamma, beta) {epsilon = 0.001}  # "sum and norm"
out y
)");
}

TEST(Residuals, OthersReadTheSumToo) {
  EXPECT_EQ(after("residuals", replaced(kBlock, "out y", "z = Relu(sum)\nout y\nout z")), R"(in a: f16[n, s, 8]
in b: f16[n, s, 8]
const gamma: f16[8]
const beta: f16[8]
y: f16[n, s, 8], _, _, sum: f16[n, s, 8] = com.microsoft.SkipLayerNormalization(a, b, gamma, beta) {epsilon = 0.001}  # "sum and norm"
z = Relu(sum)
out y
out z
)");
}

// What reads the sum stood before the norm.
TEST(Residuals, StepsAreInAnOrderInWhichTheyRun) {
  const std::string made = after("residuals", replaced(kBlock, "y: f16", "z = Relu(sum)\ny: f16") + "out z\n");
  EXPECT_LT(made.find("SkipLayerNormalization"), made.find("Relu"));
}

TEST(Residuals, OfTwoNormsOneTakesTheSum) {
  const std::string made =
      after("residuals", replaced(kBlock, "out y", "t: f16[n, s, 8] = LayerNormalization(sum, gamma)\nout t\nout y"));
  EXPECT_NE(made.find(" = com.microsoft.SkipLayerNormalization("), made.npos);
  EXPECT_NE(made.find(" = LayerNormalization(sum, gamma)"), made.npos);
}

TEST(Residuals, OfHalvesByAScaleInFloat) {
  const std::string made =
      after("residuals", replaced(replaced(kBlock, "gamma: f16[8]", "gamma: f32[8]"), "beta: f16[8]", "beta: f32[8]"));
  EXPECT_NE(made.find(" = com.microsoft.SkipLayerNormalization(a, b, gamma, beta)"), made.npos);
}

TEST(Residuals, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("residuals", kBlock, part, by); };
  stays("in b: f16[n, s, 8]", "in b: f16[n, 1, 8]");
  stays("in b: f16[n, s, 8]", "in b: f16[n, t, 8]");
  stays("in b", "const b");
  stays("const gamma", "in gamma");
  stays("beta: f16[8]", "beta: f16[1]");
  stays("beta: f16[8]", "beta: f32[8]");
  stays("gamma: f16[8]", "gamma: f32[8]");
  stays("axis = -1", "axis = 1");
  stays("y: f16[n, s, 8] =", "y: f16[n, s, 8], mean =");
  stays("sum: f16[n, s, 8]", "sum: f16[n, s, h]");
  stays("sum: f16", "elsewhere sum: f16");
  stays("y: f16", "elsewhere y: f16");
}

TEST(Residuals, SayWhyTheyStay) {
  EXPECT_EQ(notes_of("residuals", replaced(kBlock, "in b: f16[n, s, 8]", "in b: f16[n, 1, 8]")),
            Notes{"LayerNormalization node 'norm' does not become a sum and its norm: the terms of the sum may have "
                  "different shapes"});
  EXPECT_EQ(notes_of("residuals", replaced(kBlock, "in b", "const b")), Notes{});
}

}  // namespace
}  // namespace encore::fuse::tests
