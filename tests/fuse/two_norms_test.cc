#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kPass = "two_norms";

constexpr const char* kBlock = R"(in x: f16[n, s, 4]
in r: f16[n, s, 8]
const w: f16[4, 8]
const g: f16[8]
const h: f16[8]
rows: f16[n, s, 8] = encore.ProductNorm(x, w, _, _, g, _, _) {centred = 0, epsilon = 0.5}  # "product"
y: f16[n, s, 8], _, _, sum: f16[n, s, 8] = com.microsoft.SkipSimplifiedLayerNormalization(r, rows, h) {epsilon = 0.25}  # "norm"
out y
out sum
)";
constexpr const char* kFirst = "(x, w, _, _, g, _, _) {centred = 0,";
constexpr const char* kSecond = "com.microsoft.SkipSimplifiedLayerNormalization(r, rows, h)";

TEST(TwoNorms, AreOneStep) {
  EXPECT_EQ(after(kPass, kBlock), R"(in x: f16[n, s, 4]
in r: f16[n, s, 8]
const w: f16[4, 8]
const h: f16[8]
const g: f16[8]
y: f16[n, s, 8], sum: f16[n, s, 8] = encore.ProductNorm(x, w, _, r, h, _, _, _, g) {centred = 0, epsilon = 0.25, epsilon_ahead = 0.5}  # "product and norm"
out y
out sum
)");
}

TEST(TwoNorms, TheSumNeedNotBeRead) {
  const std::string made =
      after(kPass, replaced(replaced(kBlock, ", _, _, sum: f16[n, s, 8] =", " ="), "out y\nout sum", "out y"));
  EXPECT_NE(made.find("\ny: f16[n, s, 8] = encore.ProductNorm(x, w, _, r, h, _, _, _, g)"), made.npos) << made;
}

TEST(TwoNorms, TheResidualMayBeBehind) {
  const std::string made = after(kPass, replaced(kBlock, "(r, rows, h)", "(rows, r, h)"));
  EXPECT_NE(made.find("encore.ProductNorm(x, w, _, r, h, _, _, _, g)"), made.npos) << made;
}

TEST(TwoNorms, OfWhatModelsHave) {
  Plan plan =
      plan_from(replaced(replaced(kBlock, "encore.ProductNorm(x, w, _, _, g, _, _) {centred = 0, epsilon = 0.5}",
                                  "RMSNormalization(p, g) {epsilon = 0.5}"),
                         "rows: f16", "p: f16[n, s, 8] = MatMul(x, w)\nrows: f16"));
  rewrite(plan, {});
  EXPECT_NE(text_of(plan).find("encore.ProductNorm(x, w, _, r, h, _, _, _, g)"), std::string::npos) << text_of(plan);
}

TEST(TwoNorms, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays(kPass, kBlock, part, by); };
  stays("in r: f16[n, s, 8]", "in r: f16[s, 8]");
  stays("in r: f16[n, s, 8]", "in r: f16[1, s, 8]");
  stays("const h", "in h");
  stays("const h: f16", "const h: f32");
  stays("out y", "out y\nout rows");
  stays("out y", "z = Relu(rows)\nout y\nout z");
  stays("y: f16[n, s, 8], _, _", "y: f16[n, s, 8], mean: f32[n, s, 1], _");
  stays(kFirst, "(x, w, _, _, g, _, _) {centred = 1,");
  stays(kFirst, "(x, w, g, _, g, _, _) {centred = 0,");
  stays(kFirst, "(x, w, _, r, g, _, _) {centred = 0,");
  stays(kFirst, "(x, w, _, _, g, _, h) {centred = 0,");
  stays(kFirst, "(x, w, _, _, g, _, _, r) {centred = 0,");
  stays(kSecond, "com.microsoft.SkipSimplifiedLayerNormalization(r, rows, h, g)");
  stays(kSecond, "com.microsoft.SkipSimplifiedLayerNormalization(rows, rows, h)");
  stays(kSecond, "com.microsoft.SkipLayerNormalization(r, rows, h)");
  stays("y: f16", "elsewhere y: f16");
}

}  // namespace
}  // namespace encore::fuse::tests
