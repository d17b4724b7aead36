#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kNorm = R"(in x: f32[n, s, 8]
const gamma: f32[8]
const two: f32[] = 2
const small: f32[] = 0.001
const last: i64[1] = -1
q: f32[n, s, 8] = Pow(x, two)
m: f32[n, s, 1] = ReduceMean(q, last)
e: f32[n, s, 1] = Add(m, small)
r: f32[n, s, 1] = Sqrt(e)
i: f32[n, s, 1] = Reciprocal(r)
z: f32[n, s, 8] = Mul(x, i)
y: f32[n, s, 8] = Mul(z, gamma)  # "norm"
out y
)";
constexpr const char* kMade = R"(y: f32[n, s, 8] = RMSNormalization(x, gamma) {epsilon = 0.001}  # "norm")";

bool is_made(const std::string& text) { return after("spelled_norms", text).find(kMade) != std::string::npos; }

TEST(SpelledNorms, AreOne) {
  EXPECT_EQ(after("spelled_norms", kNorm), std::string(R"(in x: f32[n, s, 8]
const gamma: f32[8]
)") + kMade + "\nout y\n");
}

TEST(SpelledNorms, InOtherWords) {
  EXPECT_TRUE(is_made(replaced(kNorm, "Pow(x, two)", "Mul(x, x)")));
  EXPECT_TRUE(is_made(replaced(kNorm, "ReduceMean(q, last)", "ReduceMean@13(q) {axes = [2]}")));
  EXPECT_TRUE(is_made(replaced(kNorm, "Add(m, small)", "Add(small, m)")));
  EXPECT_TRUE(is_made(replaced(kNorm, "Mul(x, i)", "Mul(i, x)")));
  EXPECT_TRUE(is_made(replaced(kNorm, "Mul(z, gamma)", "Mul(gamma, z)")));
  EXPECT_TRUE(is_made(replaced(replaced(kNorm, "Reciprocal(r)", "Div(one, r)"), "in x", "const one: f32[] = 1\nin x")));
  EXPECT_TRUE(is_made(replaced(replaced(kNorm, "i: f32[n, s, 1] = Reciprocal(r)\n", ""), "Mul(x, i)", "Div(x, r)")));
}

constexpr const char* kOfHalves = R"(in h: f16[n, 8]
const gamma: f16[8]
const two: f32[] = 2
const small: f32[] = 0.001
const last: i64[1] = -1
x: f32[n, 8] = Cast(h) {to = 1}
q: f32[n, 8] = Pow(x, two)
m: f32[n, 1] = ReduceMean(q, last)
e: f32[n, 1] = Add(m, small)
r: f32[n, 1] = Sqrt(e)
z: f32[n, 8] = Div(x, r)
b: f16[n, 8] = Cast(z) {to = 10}
y: f16[n, 8] = Mul(gamma, b)  # "norm"
out y
)";

TEST(SpelledNorms, OfHalvesInFloat) {
  EXPECT_EQ(after("spelled_norms", kOfHalves), R"(in h: f16[n, 8]
const gamma: f16[8]
y: f16[n, 8] = RMSNormalization(h, gamma) {epsilon = 0.001}  # "norm"
out y
)");
}

TEST(SpelledNorms, OfHalvesByAScaleInFloat) {
  const std::string text =
      replaced(replaced(kOfHalves, "gamma: f16[8]", "gamma: f32[8]"), R"(b: f16[n, 8] = Cast(z) {to = 10}
y: f16[n, 8] = Mul(gamma, b)  # "norm"
)",
               R"(f: f32[n, 8] = Mul(z, gamma)  # "norm"
y: f16[n, 8] = Cast(f) {to = 10}
)");
  EXPECT_EQ(after("spelled_norms", text), R"(in h: f16[n, 8]
const gamma: f32[8]
f: f32[n, 8] = RMSNormalization(h, gamma) {epsilon = 0.001}  # "norm"
y: f16[n, 8] = Cast(f) {to = 10}
out y
)");
}

TEST(SpelledNorms, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("spelled_norms", kNorm, part, by); };
  stays("two: f32[] = 2", "two: f32[] = 3");
  stays("const small: f32[] = 0.001", "in small: f32[]");
  stays("last: i64[1] = -1", "last: i64[1] = 1");
  stays("ReduceMean(q, last)", "ReduceSum(q, last)");
  stays("Mul(x, i)", "Mul(q, i)");
  stays("out y", "out y\nout r");
  stays("out y", "out y\nout z");
  stays("ReduceMean(q, last)", "ReduceMean(q, last) {keepdims = 0}");
}

TEST(SpelledNorms, WhatMultipliesIsAConstantRow) {
  for (const char* gamma : {"in gamma: f32[8]", "const gamma: f32[1]", "const gamma: f32[4, 8]"})
    EXPECT_FALSE(is_made(replaced(kNorm, "const gamma: f32[8]", gamma))) << gamma;
}

TEST(SpelledNorms, TakeAResidualAlong) {
  Plan plan = plan_from(replaced(replaced(kNorm, "in x: f32[n, s, 8]", "in a: f32[n, s, 8]\nin b: f32[n, s, 8]"),
                                 "q: f32", "x: f32[n, s, 8] = Add(a, b)\nq: f32"));
  rewrite(plan, {});
  EXPECT_NE(text_of(plan).find("com.microsoft.SkipSimplifiedLayerNormalization(a, b, gamma) {epsilon = 0.001}"),
            std::string::npos)
      << text_of(plan);
}

constexpr const char* kCentred = R"(in x: f16[n, s, 8]
const gamma: f16[8]
const last: i64[1] = -1
m: f16[n, s, 1] = ReduceMean(x, last)
d: f16[n, s, 8] = Sub(x, m)
y: f16[n, s, 8] = RMSNormalization(d, gamma) {epsilon = 0.001}  # "norm"
out y
)";

TEST(CentredNorms, AreLayerNormalization) {
  EXPECT_EQ(after("centred_norms", kCentred), R"(in x: f16[n, s, 8]
const gamma: f16[8]
y: f16[n, s, 8] = LayerNormalization(x, gamma) {epsilon = 0.001}  # "norm"
out y
)");
}

TEST(CentredNorms, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("centred_norms", kCentred, part, by); };
  stays("last: i64[1] = -1", "last: i64[1] = 1");
  stays("ReduceMean(x, last)", "ReduceMax(x, last)");
  stays("ReduceMean(x, last)", "ReduceMean(x, last) {keepdims = 0}");
  stays("Sub(x, m)", "Sub(m, x)");
  stays("out y", "out y\nout d");
}

constexpr const char* kL2Norm = R"(in x: f16[n, s, 8]
const small: f16[] = 0.5
const shape: i64[3] = [1, 1, 8]
const last: i64[1] = -1
l: f16[n, s, 1] = ReduceL2(x, last)
c: f16[n, s, 1] = Clip(l, small, _)
e: f16[n, s, 8] = Expand(c, shape)
y: f16[n, s, 8] = Div(x, e)  # "norm"
out y
)";

TEST(SpelledL2Norms, AreOne) {
  EXPECT_NE(after("spelled_l2_norms", kL2Norm).find(R"(y: f16[n, s, 8] = encore.L2Norm(x) {least = 0.5}  # "norm")"),
            std::string::npos);
  EXPECT_EQ(after("spelled_l2_norms", kL2Norm).find("ReduceL2"), std::string::npos);
}

bool is_l2_norm(const std::string& text) {
  return after("spelled_l2_norms", text).find("encore.L2Norm(x)") != std::string::npos;
}

TEST(SpelledL2Norms, InOtherWords) {
  EXPECT_TRUE(is_l2_norm(replaced(kL2Norm, "Clip(l, small, _)", "Max(l, small)")));
  EXPECT_TRUE(is_l2_norm(replaced(kL2Norm, "Clip(l, small, _)", "Max(small, l)")));
  EXPECT_TRUE(is_l2_norm(replaced(kL2Norm, "ReduceL2(x, last)", "ReduceL2@13(x) {axes = [2]}")));
  EXPECT_TRUE(
      is_l2_norm(replaced(replaced(kL2Norm, "e: f16[n, s, 8] = Expand(c, shape)\n", ""), "Div(x, e)", "Div(x, c)")));
}

TEST(SpelledL2Norms, OfHeadsThatAreTurned) {
  const std::string turned = R"(in g: f16[n, 4, 3, 8]
const small: f16[] = 0
const last: i64[1] = 3
x: f16[n, 3, 4, 8] = Transpose(g) {perm = [0, 2, 1, 3]}
l: f16[n, 4, 3, 1] = ReduceL2(g, last)
t: f16[n, 3, 4, 1] = Transpose(l) {perm = [0, 2, 1, 3]}
c: f16[n, 3, 4, 1] = Clip(t, small)
y: f16[n, 3, 4, 8] = Div(x, c)
out y
)";
  EXPECT_TRUE(is_l2_norm(turned));
  EXPECT_FALSE(
      is_l2_norm(replaced(turned, "Transpose(l) {perm = [0, 2, 1, 3]}", "Transpose(l) {perm = [0, 1, 2, 3]}")));
}

TEST(SpelledL2Norms, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("spelled_l2_norms", kL2Norm, part, by); };
  stays("const small: f16[] = 0.5", "in small: f16[]");
  stays("const small: f16[] = 0.5", "const small: f16[] = -0.5");
  stays("Clip(l, small, _)", "Clip(l, small, small)");
  stays("Clip(l, small, _)", "Min(l, small)");
  stays("last: i64[1] = -1", "last: i64[1] = 1");
  stays("ReduceL2(x, last)", "ReduceL1(x, last)");
  stays("Div(x, e)", "Div(e, x)");
  stays("out y", "out y\nout l");
  stays("out y", "out y\nout e");
}

}  // namespace
}  // namespace encore::fuse::tests
