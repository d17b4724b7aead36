#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// As exporters write it: heads of rows, a scale, a mask, and rows of heads.
constexpr const char* kSpelled = R"(in q: f16[b, n, 64]
in k: f16[b, m, 64]
in v: f16[b, m, 64]
in mask: f16[b, 1, 1, m]
const heads: i64[4] = [0, 0, 4, 16]
const eight: f16[] = 4.0
q4: f16[b, n, 4, 16] = Reshape(q, heads)
qh: f16[b, 4, n, 16] = Transpose(q4) {perm = [0, 2, 1, 3]}
k4: f16[b, m, 4, 16] = Reshape(k, heads)
kh: f16[b, 4, 16, m] = Transpose(k4) {perm = [0, 2, 3, 1]}
v4: f16[b, m, 4, 16] = Reshape(v, heads)
vh: f16[b, 4, m, 16] = Transpose(v4) {perm = [0, 2, 1, 3]}
product: f16[b, 4, n, m] = MatMul(qh, kh)
scaled: f16[b, 4, n, m] = Div(product, eight)
masked: f16[b, 4, n, m] = Add(scaled, mask)
p: f16[b, 4, n, m] = Softmax(masked) {axis = -1}
h: f16[b, 4, n, 16] = MatMul(p, vh)
y: f16[b, n, 4, 16] = Transpose(h) {perm = [0, 2, 1, 3]}
out y
)";

TEST(Attention, TakesAlongWhatOnlyMoves) {
  EXPECT_EQ(after("attention", kSpelled), R"(in q: f16[b, n, 64]
in k: f16[b, m, 64]
in v: f16[b, m, 64]
in mask: f16[b, 1, 1, m]
y: f16[b, n, 4, 16] = encore.Attention(q, k, v, mask) {k = "reshape 0,0,4,16; transpose 0,2,3,1; transpose 0,1,3,2", q = "reshape 0,0,4,16; transpose 0,2,1,3", scale = 0.25, v = "reshape 0,0,4,16; transpose 0,2,1,3", y = [0, 2, 1, 3]}  # "y"
out y
)");
}

TEST(Attention, WhatOthersReadStaysOutside) {
  const std::string made = after("attention", replaced(kSpelled, "out y", "out y\nout v4"));
  EXPECT_NE(made.find("encore.Attention(q, k, v4, mask)"), made.npos) << made;
  EXPECT_NE(made.find("v = \"transpose 0,2,1,3\""), made.npos) << made;
}

// The shape that is asked for is the one that there is.
constexpr const char* kComputedShape = R"(s: i64[3] = Shape(q)
heads: i64[2] = Slice(s, zero, two, zero, one)
shape: i64[4] = Concat(heads, size) {axis = 0}
q4: f16[b, n, 4, 16] = Reshape(q, shape))";

std::string with_computed_shape() {
  return replaced(replaced(kSpelled, "q4: f16[b, n, 4, 16] = Reshape(q, heads)", kComputedShape), "const eight",
                  "const zero: i64[1] = [0]\nconst one: i64[1] = [1]\nconst two: i64[1] = [2]\n"
                  "const size: i64[2] = [4, 16]\nconst eight");
}

TEST(Attention, ShapesThatAreComputedComeAlong) {
  const std::string text = replaced(with_computed_shape(), "heads: i64[2]", "first: i64[2]");
  const std::string made = after("attention", replaced(text, "Concat(heads,", "Concat(first,"));
  EXPECT_EQ(made, after("attention", kSpelled));
}

TEST(Attention, OnlyItsOwnShapesDo) {
  std::string text = replaced(with_computed_shape(), "heads: i64[2]", "first: i64[2]");
  text = replaced(replaced(text, "Concat(heads,", "Concat(first,"), "out y", "out y\nout shape");
  EXPECT_NE(after("attention", text).find("encore.Attention(q, k, v, mask)"), std::string::npos);
  Plan plan = plan_from(text);
  plan.is_group = true;
  rewrite(plan, {});
  EXPECT_NE(text_of(plan).find("encore.Attention(q4, k, v, mask)"), std::string::npos) << text_of(plan);
}

TEST(Attention, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("attention", kSpelled, part, by); };
  stays("{axis = -1}", "{axis = 2}");
  stays("Softmax(masked) {axis = -1}", "Softmax@11(masked)");  // along all but the first
  stays("masked: f16", "masked: f32");
  stays("mask: f16", "mask: f32");
  stays("mask: f16[b, 1, 1, m]", "mask: f16");
  stays("eight: f16[] = 4.0", "eight: f16[] = -4.0");
  stays("out y", "out y\nout p");
  stays("out y", "out y\nout scaled");
  stays("MatMul(p, vh)", "MatMul(vh, p)");
  stays("p: f16", "elsewhere p: f16");
  stays("\nh: f16", "\nelsewhere h: f16");
  stays("vh: f16[b, 4, m, 16]", "vh: f16[b, 4, m, 12]");
}

}  // namespace
}  // namespace encore::fuse::tests
