#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kBlock = R"(in x: f32[n, 2]
const w: f32[2, 2] = [1.0, 2.0, 3.0, 4.0]
const b: f32[2] = [8.0, 6.0]
const gamma: f32[2] = [0.5, 0.25]
p: f32[n, 2] = MatMul(x, w, b)  # "product"
y: f32[n, 2] = Mul(gamma, p)  # "scale"
out y
)";

TEST(LayerScales, AreFoldedIntoWeightsAndBias) {
  EXPECT_EQ(after("layer_scales", kBlock), R"(in x: f32[n, 2]
const w: f32[2, 2] = [0.5, 0.5, 1.5, 1.0]
const "product and scale's bias": f32[2] = [4.0, 1.5]
y: f32[n, 2] = MatMul(x, w, "product and scale's bias")  # "product and scale"
out y
)");
}

// Conformers halve what their outer layers make. A product without a bias has a factor for that.
TEST(LayerScales, MayBeOneNumber) {
  const std::string half = replaced(kBlock, "const gamma: f32[2] = [0.5, 0.25]", "const gamma: f32[] = 0.5");
  EXPECT_EQ(after("layer_scales", half), R"(in x: f32[n, 2]
const w: f32[2, 2] = [0.5, 1.0, 1.5, 2.0]
const "product and scale's bias": f32[2] = [4.0, 3.0]
y: f32[n, 2] = MatMul(x, w, "product and scale's bias")  # "product and scale"
out y
)");
  expect_stays("layer_scales", half, "MatMul(x, w, b)", "MatMul(x, w)");
}

std::string in_type(const char* type, std::string text = kBlock) {
  for (size_t at = 0; (at = text.find("f32", at)) != text.npos; at += 3) text.replace(at, 3, type);
  return text;
}

TEST(LayerScales, OfHalvesLeaveWeightsWhereTheyAreMany) {
  const std::string half =
      replaced(replaced(in_type("f16"), "(x, w, b)", "(x, w)"), "const b: f16[2] = [8.0, 6.0]\n", "");
  EXPECT_EQ(after("layer_scales", half), R"(in x: f16[n, 2]
const w: f16[2, 2] = [64.0, 64.0, 192.0, 128.0]
y: f16[n, 2] = com.microsoft.FusedMatMul(x, w) {alpha = 0.0078125}  # "product and scale"
out y
)");
  EXPECT_NE(after("layer_scales", replaced(half, "[0.5, 0.25]", "[1e-6, 3e-7]")).find("FusedMatMul"),
            std::string::npos);
  EXPECT_NE(after("layer_scales", in_type("bf16")).find("y: bf16[n, 2] = MatMul(x, w, "), std::string::npos);
}

// A column that is nearly nothing beside another, or numbers too large.
TEST(LayerScales, StayWhereHalvesWouldLoseSomething) {
  const auto stays = [](const char* part, const char* by) { expect_stays("layer_scales", in_type("f16"), part, by); };
  stays("[1.0, 2.0, 3.0, 4.0]", "[1e4, 2.0, 3e4, 4.0]");
  stays("[0.5, 0.25]", "[512.0, 6e-7]");
  stays("[1.0, 2.0, 3.0, 4.0]\nconst b: f16[2] = [8.0, 6.0]\nconst gamma: f16[2] = [0.5, 0.25]",
        "[6e-8, 2.0, 6e-8, 4.0]\nconst b: f16[2] = [8.0, 6.0]\nconst gamma: f16[2] = [0.3, 0.25]");
}

TEST(LayerScales, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("layer_scales", kBlock, part, by); };
  stays("const gamma: f32[2] = [0.5, 0.25]", "in gamma: f32[2]");
  stays("const gamma: f32[2] = [0.5, 0.25]", "const gamma: f32[2, 1] = [0.5, 0.25]");
  stays("const w: f32[2, 2] = [1.0, 2.0, 3.0, 4.0]", "in w: f32[2, 2]");
  stays("const b: f32[2] = [8.0, 6.0]", "in b: f32[2]");
  stays("out y", "out y\nout p");
  stays("out y", "z: f32[n, 2] = MatMul(x, w)\nout y\nout z");
  stays("Mul(gamma, p)", "Div(gamma, p)");
  stays("Mul(gamma, p)", "Mul@6(gamma, p)");
  stays("p: f32", "elsewhere p: f32");
  stays("y: f32", "elsewhere y: f32");
}

TEST(LayerScales, SayWhyTheyStay) {
  EXPECT_EQ(
      notes_of("layer_scales", replaced(in_type("f16"), "[0.5, 0.25]", "[512.0, 6e-7]")),
      Notes{"MatMul node 'product' does not become a product and its scale: its weights or bias would lose too much "
            "in their type"});
  EXPECT_EQ(notes_of("layer_scales", kBlock), Notes{});
  EXPECT_EQ(notes_of("layer_scales", replaced(kBlock, "const gamma: f32[2] = [0.5, 0.25]", "in gamma: f32[2]")),
            Notes{});
}

}  // namespace
}  // namespace encore::fuse::tests
