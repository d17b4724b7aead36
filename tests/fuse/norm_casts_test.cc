#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kPass = "norm_casts";

constexpr const char* kNorm = R"(in h: f16[n, s, 8]
const gamma: f32[8]
const beta: f32[8]
x: f32[n, s, 8] = Cast(h) {to = 1}
f: f32[n, s, 8] = LayerNormalization(x, gamma, beta) {axis = -1, epsilon = 0.001}  # "norm"
y: f16[n, s, 8] = Cast(f) {to = 10}
out y
)";

TEST(NormCasts, GoWithTheNorm) {
  EXPECT_EQ(after(kPass, kNorm), R"(in h: f16[n, s, 8]
const gamma: f32[8]
const beta: f32[8]
y: f16[n, s, 8] = LayerNormalization(h, gamma, beta) {axis = -1, epsilon = 0.001}  # "norm"
out y
)");
}

TEST(NormCasts, OfWhatHasBeenNarrowBefore) {
  const std::string narrow = replaced(replaced(kNorm, "x: f32[n, s, 8] = Cast(h) {to = 1}\n", ""),
                                      "LayerNormalization(x, gamma, beta)", "RMSNormalization(h, gamma)");
  EXPECT_NE(after(kPass, narrow).find("y: f16[n, s, 8] = RMSNormalization(h, gamma)"), std::string::npos);
}

TEST(NormCasts, OthersReadTheFloatsToo) {
  const std::string read = after(kPass, replaced(kNorm, "out y", "z: f32[n, s, 8] = Relu(x)\nout y\nout z"));
  EXPECT_NE(read.find("LayerNormalization(h, gamma, beta)"), std::string::npos);
  EXPECT_NE(read.find("x: f32[n, s, 8] = Cast(h)"), std::string::npos);
}

TEST(NormCasts, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays(kPass, kNorm, part, by); };
  stays("out y", "out y\nout f");
  stays("const gamma", "in gamma");
  stays("in h: f16", "in h: bf16");
  stays("x: f32[n, s, 8] = Cast(h) {to = 1}", "x: f32[n, s, 8] = Relu(h)");
  stays("f: f32[n, s, 8] =", "f: f32[n, s, 8], mean: f32[n, s, 1] =");
  stays("y: f16[n, s, 8] = Cast(f) {to = 10}", "y: f64[n, s, 8] = Cast(f) {to = 11}");
  stays("y: f16[n, s, 8] = Cast(f) {to = 10}", "y: f32[n, s, 8] = Relu(f)");
}

// torch's exporter adds up halves so.
TEST(ReductionCasts, GoWithTheReduction) {
  constexpr const char* kSum = R"(in h: f16[n, 4, 8]
const axes: i64[1] = [1]
x: f32[n, 4, 8] = Cast(h) {to = 1}
f: f32[n, 8] = ReduceSum(x, axes) {keepdims = 0}  # "sum"
y: f16[n, 8] = Cast(f) {to = 10}
out y
)";
  EXPECT_EQ(after("reduction_casts", kSum), R"(in h: f16[n, 4, 8]
const axes: i64[1] = [1]
y: f16[n, 8] = ReduceSum(h, axes) {keepdims = 0}  # "sum"
out y
)");
  const auto stays = [&](const char* part, const char* by) { expect_stays("reduction_casts", kSum, part, by); };
  stays("out y", "out y\nout f");
  stays("in h: f16", "in h: bf16");
  stays("ReduceSum(x", "ReduceLogSumExp(x");
  stays("y: f16[n, 8] = Cast(f) {to = 10}", "y: f64[n, 8] = Cast(f) {to = 11}");
}

TEST(NormCasts, SumsAndProductsAreJoinedAfterwards) {
  Plan plan = plan_from(replaced(replaced(kNorm, "in h: f16[n, s, 8]", R"(in a: f16[n, s, 4]
in r: f16[n, s, 8]
const w: f16[4, 8])"),
                                 "x: f32[n, s, 8] =", R"(p: f16[n, s, 8] = MatMul(a, w)
h: f16[n, s, 8] = Add(p, r)
x: f32[n, s, 8] =)"));
  rewrite(plan, {});
  EXPECT_NE(text_of(plan).find("encore.ProductNorm(a, w, _, r, gamma, beta, _)"), std::string::npos) << text_of(plan);
}

}  // namespace
}  // namespace encore::fuse::tests
