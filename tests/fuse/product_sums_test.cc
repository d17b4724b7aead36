#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kProduct = R"(in x: f16[n, s, 4]
in r: f16[n, s, 8]
const w: f16[4, 8]
const b: f16[8]
p: f16[n, s, 8] = MatMul(x, w, b)  # "product"
y: f16[n, s, 8] = Add(r, p)  # "sum"
out y
)";

TEST(ProductSums, TheProductAddsTheResidual) {
  EXPECT_EQ(after("product_sums", kProduct), R"(in x: f16[n, s, 4]
in r: f16[n, s, 8]
const w: f16[4, 8]
const b: f16[8]
y: f16[n, s, 8] = MatMul(x, w, b, r)  # "product and sum"
out y
)");
}

TEST(ProductSums, WithoutABiasAndScaled) {
  const std::string made = after("product_sums", replaced(kProduct, "MatMul(x, w, b)",
                                                          "com.microsoft.FusedMatMul(x, w) {alpha = 0.5, transB = 1}"));
  EXPECT_NE(made.find("y: f16[n, s, 8] = com.microsoft.FusedMatMul(x, w, _, r) {alpha = 0.5, transB = 1}"), made.npos)
      << made;
}

// onnxruntime makes it of rows of any rank.
TEST(ProductSums, OfAGemm) {
  const std::string gemm =
      replaced(replaced(replaced(replaced(kProduct, "in x: f16[n, s, 4]", "in x: f16[n, 4]"), "in r: f16[n, s, 8]",
                                 "in r: f16[n, 8]"),
                        "p: f16[n, s, 8] = MatMul(x, w, b)", "p: f16[n, 8] = Gemm(x, w, b) {alpha = 1.0, beta = 1.0}"),
               "y: f16[n, s, 8]", "y: f16[n, 8]");
  const std::string made = after("product_sums", gemm);
  EXPECT_NE(made.find("y: f16[n, 8] = MatMul(x, w, b, r)  # \"product and sum\""), made.npos) << made;
  const auto stays = [&](const char* part, const char* by) { expect_stays("product_sums", gemm, part, by); };
  stays("alpha = 1.0", "alpha = 2.0");
  stays("beta = 1.0", "beta = 2.0");
  stays("beta = 1.0", "transA = 1");
  stays("beta = 1.0", "transB = 1");
  stays("const b: f16[8]", "const b: f16[7, 8]");
  stays("Gemm(", "Gemm@6(");
  // Weights may have a row for each column, as torch's layers have them.
  const std::string turned =
      after("product_sums", replaced(replaced(gemm, "w: f16[4, 8]", "w: f16[8, 4]"), "beta = 1.0", "transB = 1"));
  EXPECT_NE(turned.find("y: f16[n, 8] = com.microsoft.FusedMatMul(x, w, b, r) {transB = 1}"), turned.npos) << turned;
}

TEST(ProductSums, OfTwoProductsOneAddsTheOther) {
  const std::string made = after("product_sums", replaced(kProduct, "in r: f16[n, s, 8]",
                                                          "in q: f16[n, s, 8]\nconst v: f16[8, 8]\n"
                                                          "r: f16[n, s, 8] = MatMul(q, v)"));
  EXPECT_NE(made.find("p: f16[n, s, 8] = MatMul(x, w, b)"), made.npos) << made;
  EXPECT_NE(made.find("y: f16[n, s, 8] = MatMul(q, v, _, p)"), made.npos) << made;
}

constexpr const char* kSeen = R"(in x: f16[n, 6, 4]
in r: f16[n, 6, 8]
const w: f16[4, 8]
p: f16[n, 6, 8] = MatMul(x, w)  # "product"
s: i64[3] = Shape(p)
flat: f16[m, 8] = Flatten(p) {axis = 2}
v: f16[n, 6, 8] = Reshape(flat, s)  # "back"
y: f16[n, 6, 8] = Add(v, r)  # "sum"
z: f16[n, 6, 8] = Relu(y)
out y
out z
)";

TEST(ProductSums, RowsMayBeSeenOtherwiseBetween) {
  EXPECT_EQ(after("product_sums", kSeen), R"(in x: f16[n, 6, 4]
in r: f16[n, 6, 8]
const w: f16[4, 8]
p: f16[n, 6, 8] = MatMul(x, w, _, r)  # "product and sum"
s: i64[3] = Shape(p)
flat: f16[m, 8] = Flatten(p) {axis = 2}
y: f16[n, 6, 8] = Reshape(flat, s)  # "back"
z: f16[n, 6, 8] = Relu(y)
out y
out z
)");
}

// Who reads the shape might make the residual by it.
TEST(ProductSums, RowsSeenOtherwiseStayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("product_sums", kSeen, part, by); };
  stays("out z", "out z\nout s");
  stays("out z", "out z\nout flat");
  stays("y: f16[n, 6, 8] = Add(v, r)", "q: f16[n, 6, 8] = Reshape(r, s)\ny: f16[n, 6, 8] = Add(v, q)");
  stays("Flatten(p) {axis = 2}", "Relu(p)");
  stays("flat: f16", "elsewhere flat: f16");
}

TEST(ProductSums, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("product_sums", kProduct, part, by); };
  stays("in r: f16[n, s, 8]", "in r: f16[n, 1, 8]");
  stays("in r: f16[n, s, 8]", "in r: f16[n, t, 8]");
  stays("in r: f16[n, s, 8]", "in r: f16[?, s, 8]");
  stays("in r", "const r");
  stays("in r: f16", "in r: f32");
  stays("const w", "in w");
  stays("out y", "out y\nout p");
  stays("out y", "z = Relu(p)\nout y\nout z");
  stays("Add(r, p)", "Add(p, p)");
  stays("Add(r, p)", "Sub(r, p)");
  stays("MatMul(x, w, b)", "MatMul(x, w, b, r)");
  stays("p: f16", "elsewhere p: f16");
  stays("y: f16", "elsewhere y: f16");
}

TEST(ProductSums, StayWhereAnElementwiseStepTakesTheSum) {
  Plan plan = plan_from(replaced(kProduct, "in r: f16[n, s, 8]", "in q: f16[n, s, 8]\nr: f16[n, s, 8] = Mul(q, q)"));
  plan.settings.fuses_elementwise = true;
  const std::string before = text_of(plan);
  run(*std::ranges::find(passes(), std::string_view("product_sums"), &Pass::name), plan);
  EXPECT_EQ(text_of(plan), before);
}

TEST(ProductSums, SayWhyTheyStay) {
  EXPECT_EQ(
      notes_of("product_sums", replaced(kProduct, "in r: f16[n, s, 8]", "in r: f16[n, 1, 8]")),
      Notes{"MatMul node 'product' does not become a product and its sum: the terms of the sum may have different "
            "shapes"});
  EXPECT_EQ(notes_of("product_sums", kProduct), Notes{});
  EXPECT_EQ(notes_of("product_sums", replaced(kProduct, "in r", "const r")), Notes{});
  EXPECT_EQ(notes_of("product_sums", replaced(kProduct, "Add(r, p)", "Add(p, p)")), Notes{});
}

}  // namespace
}  // namespace encore::fuse::tests
