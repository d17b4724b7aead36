#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kProduct = R"(in x: f16[b, n, k]
in z: f16[b, m, k]
const half: f16[1] = [0.5]
s: f16[b, n, k] = Mul(x, half)
t: f16[b, k, m] = Transpose(z) {perm = [0, 2, 1]}
p: f16[b, n, m] = MatMul(s, t)  # "product"
y: f16[b, n, m] = Div(p, half)
out y
)";

TEST(Products, TakeTranspositionsAndScalesAlong) {
  EXPECT_EQ(after("products", kProduct), R"(in x: f16[b, n, k]
in z: f16[b, m, k]
y: f16[b, n, m] = com.microsoft.FusedMatMul(x, z) {alpha = 1.0, transB = 1}  # "product"
out y
)");
}

TEST(Products, OfTheSameFactor) {
  EXPECT_EQ(after("products", R"(in x: f32[n, k]
t: f32[k, n] = Transpose(x) {perm = [1, 0]}
y = MatMul(t, x)
out y
)"),
            "in x: f32[n, k]\ny = com.microsoft.FusedMatMul(x, x) {alpha = 1.0, transA = 1}\nout y\n");
}

// As a picture's positions are that has its channels last.
TEST(Products, ATranspositionStaysThatUndoesAnother) {
  const std::string text = R"(in x: f16[b, 4, 4, 8]
const w: f16[8, 16]
const s: i64[3] = [0, 8, 16]
t: f16[b, 8, 4, 4] = Transpose(x) {perm = [0, 3, 1, 2]}
r: f16[b, 8, 16] = Reshape(t, s)
u: f16[b, 16, 8] = Transpose(r) {perm = [0, 2, 1]}
y: f16[b, 16, 16] = MatMul(u, w)
out y
)";
  EXPECT_EQ(after("products", text), text_of(plan_from(text)));
  const std::string made = after("products", replaced(text, "perm = [0, 3, 1, 2]", "perm = [0, 3, 2, 1]"));
  EXPECT_NE(made.find("FusedMatMul(r, w) {alpha = 1.0, transA = 1}"), made.npos) << made;
}

TEST(Products, ABiasIsNotScaled) {
  const std::string text = replaced(replaced(kProduct, "MatMul(s, t)", "MatMul(s, t, bias)"), "const half",
                                    "const bias: f16[m]\nconst half");
  const std::string made = after("products", text);
  EXPECT_NE(made.find("p: f16[b, n, m] = com.microsoft.FusedMatMul(x, z, bias) {alpha = 0.5, transB = 1}"), made.npos)
      << made;
  EXPECT_NE(made.find("y: f16[b, n, m] = Div(p, half)"), made.npos) << made;
}

TEST(Products, WhatOthersReadIsMade) {
  const auto makes = [](const char* by, const char* wanted) {
    const std::string made = after("products", replaced(kProduct, "out y", by));
    EXPECT_NE(made.find(wanted), made.npos) << made;
  };
  makes("out y\nout s", "FusedMatMul(s, z) {alpha = 2.0, transB = 1}");
  makes("out y\nout t", "FusedMatMul(x, t) {alpha = 1.0}");
  makes("out y\nout p", "p: f16[b, n, m] = com.microsoft.FusedMatMul(x, z) {alpha = 0.5, transB = 1}");
}

TEST(Products, OtherwiseStay) {
  const char* const plain =
      "in x: f32[n, k]\nin z: f32[k, m]\nt: f32[k, n] = Transpose(x) {perm = [1, 0]}\ny = MatMul(t, z)\nout y\n";
  const auto stays = [&](const char* part, const char* by) { expect_stays("products", plain, part, by); };
  stays("[1, 0]", "[0, 1]");
  stays("[1, 0]", "[1, 0, 2]");
  stays("t: f32", "t: i32");
  stays("MatMul(t", "Gemm(t");
  stays("t: f32", "elsewhere t: f32");
}

}  // namespace
}  // namespace encore::fuse::tests
