#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kScores = R"(in x: f16[n, 3, 4, 8]
in k: f16[n, 3, 8, 4]
in mask: f16[3, 4, 4]
const by: f16[3, 1, 1]
q: f16[n, 3, 4, 8] = encore.L2Norm(x) {least = 0.5}
s: f16[n, 3, 4, 4] = MatMul(q, k)  # "scores"
m: f16[n, 3, 4, 4] = Mul(s, by)  # "scaled"
a: f16[n, 3, 4, 4] = Add(m, mask)
p: f16[n, 3, 4, 4] = Softmax(a) {axis = -1}
out p
)";

TEST(HeadScales, MultiplyQueries) {
  EXPECT_EQ(after("head_scales", kScores), R"(in x: f16[n, 3, 4, 8]
in k: f16[n, 3, 8, 4]
in mask: f16[3, 4, 4]
const by: f16[3, 1, 1]
q: f16[n, 3, 4, 8] = encore.L2Norm(x) {least = 0.5}
"q by heads": f16[n, 3, 4, 8] = Mul(q, by)  # "scaled"
m: f16[n, 3, 4, 4] = MatMul("q by heads", k)  # "scores"
a: f16[n, 3, 4, 4] = Add(m, mask)
p: f16[n, 3, 4, 4] = Softmax(a) {axis = -1}
out p
)");
}

TEST(HeadScales, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("head_scales", kScores, part, by); };
  stays("const by: f16[3, 1, 1]", "in by: f16[3, 1, 1]");
  stays("const by: f16[3, 1, 1]", "const by: f16[3, 4, 1]");
  stays("const by: f16[3, 1, 1]", "const by: f16[1, 4]");
  stays("const by: f16[3, 1, 1]", "const by: f16[]");
  stays("q: f16[n, 3, 4, 8] = enc", "q: f16[n, 1, 4, 8] = enc");  // which one of them has for all heads
  stays("out p", "out p\nout s");
  stays("Softmax(a) {axis = -1}", "Relu(a)");
  stays("encore.L2Norm(x) {least = 0.5}", "Relu(x)");
}

}  // namespace
}  // namespace encore::fuse::tests
