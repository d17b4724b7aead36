#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kRows = R"(in x: f16[n, 32]
in skip: f16[n, 32]
const gamma: f16[32]
const codes: u8[64, 1, 16]
const scales: f16[64]
rows: f16[n, 32], _, _, sum: f16[n, 32] = com.microsoft.SkipSimplifiedLayerNormalization(x, skip, gamma)  # "norm"
y: f16[n, 64] = com.microsoft.MatMulNBits(rows, codes, scales) {K = 32, N = 64, bits = 4, block_size = 32}  # "product"
out y
out sum
)";

TEST(Norms, GoWithTheirProduct) {
  EXPECT_EQ(after("norms", kRows), R"(in x: f16[n, 32]
in skip: f16[n, 32]
const gamma: f16[32]
const codes: u8[64, 1, 16]
const scales: f16[64]
y: f16[n, 64], sum: f16[n, 32] = "encore.SkipSimplifiedLayerNormalization and MatMulNBits"(x, skip, gamma, codes, scales)  # "norm and product"
out y
out sum
)");
}

TEST(Norms, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("norms", kRows, part, by); };
  stays("const gamma", "in gamma");
  stays("gamma: f16[32]", "gamma: f16[1]");
  stays("gamma: f16[32]", "gamma: f32[32]");
  stays("x: f16[n, 32]", "x: f32[n, 32]");
  stays("const scales", "in scales");
  stays("_, _, sum", "mean, _, sum");
  stays("out sum", "out sum\nout rows");
  stays("out sum", "z = Relu(rows)\nout sum\nout z");
  stays("K = 32", "K = 64");
  stays("y: f16", "elsewhere y: f16");
  stays("com.microsoft.SkipS", "S");
}

constexpr const char* kPlain = R"(in x: f16[n, 32]
in skip: f16[n, 32]
const gamma: f16[32]
const weights: f16[32, 64]
const bias: f16[64]
rows: f16[n, 32], _, _, sum: f16[n, 32] = com.microsoft.SkipSimplifiedLayerNormalization(x, skip, gamma)  # "norm"
y: f16[n, 64] = MatMul(rows, weights, bias)  # "product"
out y
out sum
)";

TEST(Norms, GoWithPlainProducts) {
  EXPECT_EQ(after("norms", kPlain), R"(in x: f16[n, 32]
in skip: f16[n, 32]
const gamma: f16[32]
const weights: f16[32, 64]
const bias: f16[64]
y: f16[n, 64], sum: f16[n, 32] = "encore.SkipSimplifiedLayerNormalization and MatMul"(x, skip, gamma, weights, bias)  # "norm and product"
out y
out sum
)");
}

TEST(Norms, OtherProductsAreLeftAlone) {
  const auto stays = [](const char* part, const char* by) { expect_stays("norms", kPlain, part, by); };
  stays("const weights", "in weights");
  stays("const bias", "in bias");
  stays("const weights: f16[32, 64]", "const weights: f16[1, 32, 64]");
  stays("const weights: f16[32, 64]", "const weights: f16[48, 64]");
  stays("const weights: f16[32, 64]", "const weights: f16");
  stays("MatMul(rows, weights, bias)", "MatMul(weights, rows)");
  stays("out sum", "out sum\nout rows");
}

// What a gate, and a residual sum ahead of the norm, become on the way.
TEST(Norms, GoWithGates) {
  const std::string text = R"(in a: f16[n, s, 32]
in b: f16[n, s, 32]
const gamma: f16[32]
const wx: f16[32, 8]
const wy: f16[32, 8]
sum: f16[n, s, 32] = Add(a, b)  # "sum"
rows: f16[n, s, 32] = RMSNormalization(sum, gamma) {axis = -1, epsilon = 0.001}  # "norm"
x: f16[n, s, 8] = MatMul(rows, wx)  # "left"
up: f16[n, s, 8] = MatMul(rows, wy)  # "right"
s: f16[n, s, 8] = Sigmoid(x)
silu: f16[n, s, 8] = Mul(x, s)
y: f16[n, s, 8] = Mul(silu, up)
out y
out sum
)";
  EXPECT_EQ(after("norms", after("residuals", after("gates", text))), R"(in a: f16[n, s, 32]
in b: f16[n, s, 32]
const gamma: f16[32]
const wx: f16[32, 16]
y: f16[n, s, 8], sum: f16[n, s, 32] = "encore.SkipSimplifiedLayerNormalization and GatedMatMul"(a, b, gamma, wx)  # "sum and norm and left and right"
out y
out sum
)");
}

}  // namespace
}  // namespace encore::fuse::tests
