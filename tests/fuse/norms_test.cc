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

}  // namespace
}  // namespace encore::fuse::tests
