#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kPass = "norm_sums";

constexpr const char* kBlock = R"(in x: f16[n, s, 8]
in r: f16[n, s, 8]
const gamma: f16[8]
const beta: f16[8]
rows: f16[n, s, 8] = LayerNormalization(x, gamma, beta) {axis = -1, epsilon = 0.001}  # "norm"
y: f16[n, s, 8] = Add(r, rows)  # "sum"
out y
)";
constexpr const char* kNorm = "LayerNormalization(x, gamma, beta) {axis = -1, epsilon = 0.001}";

TEST(NormSums, AreOneStep) {
  EXPECT_EQ(after(kPass, kBlock), R"(in x: f16[n, s, 8]
in r: f16[n, s, 8]
const gamma: f16[8]
const beta: f16[8]
y: f16[n, s, 8] = LayerNormalization(x, gamma, beta, r) {axis = -1, epsilon = 0.001}  # "norm and sum"
out y
)");
}

// What the step is whose name is that of both.
std::string made_of(const std::string& text) {
  const std::string made = after(kPass, text);
  const size_t end = made.find("  # \"norm and sum\""), begin = made.rfind(" = ", made.rfind('(', end)) + 3;
  return end == made.npos ? made : made.substr(begin, end - begin);
}

TEST(NormSums, OfEachKind) {
  EXPECT_EQ(made_of(replaced(kBlock, "Add(r, rows)", "Add(rows, r)")),
            "LayerNormalization(x, gamma, beta, r) {axis = -1, epsilon = 0.001}");
  EXPECT_EQ(made_of(replaced(kBlock, kNorm, "LayerNormalization(x, gamma)")), "LayerNormalization(x, gamma, _, r)");
  EXPECT_EQ(made_of(replaced(kBlock, kNorm, "LayerNormalization(x, gamma) {axis = 1}")),
            "LayerNormalization(x, gamma, _, r) {axis = 1}");
  EXPECT_EQ(made_of(replaced(kBlock, kNorm, "RMSNormalization(x, gamma)")), "RMSNormalization(x, gamma, _, r)");
  EXPECT_EQ(made_of(replaced(kBlock, kNorm, "SimplifiedLayerNormalization(x, gamma)")),
            "SimplifiedLayerNormalization(x, gamma, _, r)");
  EXPECT_EQ(made_of(replaced(kBlock, "const gamma: f16", "in gamma: f32")),
            "LayerNormalization(x, gamma, beta, r) {axis = -1, epsilon = 0.001}");
}

constexpr const char* kProduct = "encore.ProductNorm(a, w, _, _, gamma, beta, _) {centred = 1, epsilon = 0.5}";

std::string of_product() {
  return replaced(replaced(kBlock, "in x: f16[n, s, 8]", "in a: f16[n, s, 4]\nconst w: f16[4, 8]"), kNorm, kProduct);
}

TEST(NormSums, OfProducts) {
  EXPECT_EQ(made_of(of_product()), "encore.ProductNorm(a, w, _, _, gamma, beta, _, r) {centred = 1, epsilon = 0.5}");
  expect_stays(kPass, of_product(), "rows: f16[n, s, 8] =", "rows: f16[n, s, 8], read: f16[n, s, 8] =");
}

TEST(NormSums, AreJoinedBehindProducts) {
  Plan plan = plan_from(replaced(replaced(kBlock, "in x: f16[n, s, 8]", "in a: f16[n, s, 4]\nconst w: f16[4, 8]"),
                                 "rows: f16", "x: f16[n, s, 8] = MatMul(a, w)\nrows: f16"));
  rewrite(plan, {});
  EXPECT_NE(text_of(plan).find("encore.ProductNorm(a, w, _, _, gamma, beta, _, r)"), std::string::npos)
      << text_of(plan);
}

// Elementwise steps are one with the sum, which would cut them in two.
TEST(NormSums, GoWithWhatMakesTheOtherTerm) {
  const std::string made = replaced(replaced(kBlock, "rows: f16", "made: f16[n, s, 8] = Relu(r)\nrows: f16"),
                                    "Add(r, rows)", "Add(made, rows)");
  EXPECT_EQ(after(kPass, made), text_of(plan_from(made)));
  EXPECT_NE(after(kPass, made + "out made\n").find("LayerNormalization(x, gamma, beta, made)"), std::string::npos);
}

// A sum behind is a sum of its own.
TEST(NormSums, TakeOneTerm) {
  const std::string made = after(kPass, replaced(kBlock, "out y", "z: f16[n, s, 8] = Add(y, x)\nout z"));
  EXPECT_EQ(after(kPass, made), made);
  EXPECT_NE(made.find("z: f16[n, s, 8] = Add(y, x)"), std::string::npos);
}

// What makes the other term stood behind the norm.
TEST(NormSums, StepsAreInAnOrderInWhichTheyRun) {
  const std::string made =
      after(kPass, replaced(replaced(kBlock, "y: f16", "t: f16[n, s, 8] = Softmax(r)\ny: f16"), "Add(r", "Add(t"));
  EXPECT_LT(made.find("Softmax"), made.find("LayerNormalization(x, gamma, beta, t)"));
}

TEST(NormSums, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays(kPass, kBlock, part, by); };
  stays("in r: f16[n, s, 8]", "in r: f16[n, 1, 8]");
  stays("in r: f16[n, s, 8]", "in r: f16[n, t, 8]");
  stays("in r: f16[n, s, 8]", "in r: f16[s, 8]");
  stays("in r: f16[n, s, 8]", "in r: f16[m, n, s, 8]");
  stays("in r: f16[n, s, 8]", "in r: f16");
  stays("in r", "const r");
  stays("Add(r, rows)", "Add(rows, rows)");
  stays("Add(r, rows)", "Sub(r, rows)");
  stays("out y", "out y\nout rows");
  stays("out y", "z = Softmax(rows)\nout y\nout z");
  stays("rows: f16[n, s, 8] =", "rows: f16[n, s, 8], mean: f32[n, s, 1] =");
  stays(kNorm, "GroupNormalization(x, gamma, beta)");
  stays(kNorm, "com.microsoft.LayerNormalization(x, gamma, beta)");
  stays("rows: f16", "elsewhere rows: f16");
  stays("y: f16", "elsewhere y: f16");
}

}  // namespace
}  // namespace encore::fuse::tests
