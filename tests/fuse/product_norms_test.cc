#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kPass = "product_norms";

constexpr const char* kProduct = R"(in x: f16[n, s, 4]
in r: f16[n, s, 8]
const w: f16[4, 8]
const b: f16[8]
const g: f16[8]
const o: f16[8]
p: f16[n, s, 8] = MatMul(x, w, b)  # "product"
y: f16[n, s, 8], _, _, sum: f16[n, s, 8] = com.microsoft.SkipLayerNormalization(p, r, g, o) {epsilon = 0.5}  # "norm"
out y
out sum
)";
constexpr const char* kNorm = "com.microsoft.SkipLayerNormalization(p, r, g, o)";

TEST(ProductNorms, AreOneStep) {
  EXPECT_EQ(after(kPass, kProduct), R"(in x: f16[n, s, 4]
in r: f16[n, s, 8]
const w: f16[4, 8]
const b: f16[8]
const g: f16[8]
const o: f16[8]
y: f16[n, s, 8], sum: f16[n, s, 8] = encore.ProductNorm(x, w, b, r, g, o, _) {centred = 1, epsilon = 0.5}  # "product and norm"
out y
out sum
)");
}

std::string made_of(const std::string& text) {
  const std::string made = after(kPass, text);
  const size_t at = made.find("encore.ProductNorm("), end = made.find("  #", at);
  return at == made.npos ? made : made.substr(at, end - at);
}

TEST(ProductNorms, OfEachKind) {
  EXPECT_EQ(made_of(replaced(kProduct, kNorm, "com.microsoft.SkipLayerNormalization(r, p, g)")),
            "encore.ProductNorm(x, w, b, r, g, _, _) {centred = 1, epsilon = 0.5}");
  EXPECT_EQ(made_of(replaced(kProduct, kNorm, "com.microsoft.SkipSimplifiedLayerNormalization(p, r, g)")),
            "encore.ProductNorm(x, w, b, r, g, _, _) {centred = 0, epsilon = 0.5}");
  const std::string plain =
      replaced(kProduct, "MatMul(x, w, b)", "com.microsoft.FusedMatMul(x, w) {alpha = 0.25, transB = 1}");
  EXPECT_EQ(made_of(replaced(plain, kNorm, "com.microsoft.SkipLayerNormalization(p, r, g, o, b)")),
            "encore.ProductNorm(x, w, _, r, g, o, b) {alpha = 0.25, centred = 1, epsilon = 0.5, transB = 1}");
  const std::string alone =
      replaced(replaced(kProduct, "y: f16[n, s, 8], _, _, sum: f16[n, s, 8]", "y: f16[n, s, 8]"), "out sum\n", "");
  EXPECT_EQ(made_of(replaced(alone, kNorm, "LayerNormalization(p, g, o)")),
            "encore.ProductNorm(x, w, b, _, g, o, _) {centred = 1, epsilon = 0.5}");
  EXPECT_EQ(made_of(replaced(alone, kNorm, "RMSNormalization(p, g)")),
            "encore.ProductNorm(x, w, b, _, g, _, _) {centred = 0, epsilon = 0.5}");
}

// As onnxruntime leaves them, which makes Gemm of a product and its bias.
constexpr const char* kSeen = R"(in x: f16[m, 4]
in r: f16[1, m, 8]
const shape: i64[3]
const w: f16[4, 8]
const b: f16[8]
const g: f16[8]
p: f16[m, 8] = Gemm(x, w, b)  # "product"
v: f16[1, m, 8] = Reshape(p, shape)
y: f16[1, m, 8] = com.microsoft.SkipLayerNormalization(v, r, g)  # "norm"
out y
)";

TEST(ProductNorms, RowsMayBeSeenOtherwiseBetween) {
  EXPECT_EQ(after(kPass, kSeen), R"(in x: f16[m, 4]
in r: f16[1, m, 8]
const w: f16[4, 8]
const b: f16[8]
const g: f16[8]
y: f16[1, m, 8] = encore.ProductNorm(x, w, b, r, g, _, _) {centred = 1, epsilon = 1e-12}  # "product and norm"
out y
)");
}

TEST(ProductNorms, RowsSeenOtherwiseStayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays(kPass, kSeen, part, by); };
  stays("out y", "out y\nout v");
  stays("out y", "out y\nout p");
  stays("com.microsoft.SkipLayerNormalization(v, r, g)", "LayerNormalization(v, g)");
  stays("Reshape(p, shape)", "Relu(p)");
  stays("in r: f16[1, m, 8]", "in r: f16[m, 8]");
  const std::string narrow =
      replaced(replaced(kSeen, "in r: f16[1, m, 8]", "in r: f16[1, m, 4]"), "const g: f16[8]", "const g: f16[4]");
  expect_stays(kPass, replaced(narrow, "y: f16[1, m, 8]", "y: f16[1, m, 4]"), "v: f16[1, m, 8]", "v: f16[1, m, 4]");
}

TEST(ProductNorms, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays(kPass, kProduct, part, by); };
  stays("in r: f16[n, s, 8]", "in r: f16[1, s, 8]");
  stays("in r: f16[n, s, 8]", "in r: f16[s, 8]");
  stays("in r: f16[n, s, 8]", "in r: f16[n, ?, 8]");
  stays("in x: f16[n, s, 4]", "in x: f16[4]");
  stays("const w: f16[4, 8]", "const w: f16[n, 4, 8]");
  stays("const w", "in w");
  stays("const g", "in g");
  stays("const o", "in o");
  stays("const b", "in b");
  stays("const b: f16[8]", "const b: f16[1]");
  stays("const g: f16[8]", "const g: f32[8]");
  stays(kNorm, "com.microsoft.SkipLayerNormalization(p, p, g, o)");
  stays(kNorm, "com.microsoft.SkipLayerNormalization(p, r, g, o, b)");
  stays("y: f16[n, s, 8], _", "y: f16[n, s, 8], mean: f32[n, s, 1]");
  stays("out y", "out y\nout p");
  stays("out y", "z = Relu(p)\nout y\nout z");
  stays("MatMul(x, w, b)", "MatMul(x, w, b, r)");
  stays("MatMul(x, w, b)", "MatMul(x, w, b) {activation = \"Relu\"}");
  stays("MatMul(x, w, b)", "com.microsoft.FusedMatMul(x, w) {transA = 1}");
  stays("MatMul(x, w, b)", "com.microsoft.FusedMatMul(x, w) {transBatchA = 1}");
  stays("p: f16", "elsewhere p: f16");
  stays("y: f16", "elsewhere y: f16");
}

TEST(ProductNorms, SayWhyTheyStay) {
  EXPECT_EQ(
      notes_of(kPass, replaced(kProduct, "const g", "in g")),
      Notes{"MatMul node 'product' does not become a product and its norm: what the norm multiplies or adds is no "
            "constant row of its type"});
  const Notes of_bias{
      "MatMul node 'product' does not become a product and its norm: its bias is no constant row, or the norm adds "
      "one, "
      "too"};
  EXPECT_EQ(notes_of(kPass, replaced(kProduct, "const b", "in b")), of_bias);
  EXPECT_EQ(notes_of(kPass, replaced(kProduct, kNorm, "com.microsoft.SkipLayerNormalization(p, r, g, o, b)")), of_bias);
  EXPECT_EQ(notes_of(kPass, kProduct), Notes{});
  EXPECT_EQ(notes_of(kPass, replaced(kProduct, "out y", "out y\nout p")), Notes{});
}

}  // namespace
}  // namespace encore::fuse::tests
