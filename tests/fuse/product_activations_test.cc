#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kProduct = R"(in x: f16[n, s, 4]
const w: f16[4, 8]
const b: f16[8]
p: f16[n, s, 8] = MatMul(x, w, b)  # "product"
y: f16[n, s, 8] = Gelu(p)  # "gelu"
out y
)";
constexpr const char* kGelu = "Gelu(p)";

TEST(ProductActivations, TheProductEndsWithIt) {
  EXPECT_EQ(after("product_activations", kProduct), R"(in x: f16[n, s, 4]
const w: f16[4, 8]
const b: f16[8]
y: f16[n, s, 8] = MatMul(x, w, b) {activation = "Gelu", activation_params = []}  # "product and gelu"
out y
)");
}

TEST(ProductActivations, OfEachKind) {
  const auto ends = [](const char* step, const char* attributes) {
    const std::string made = after("product_activations", replaced(kProduct, kGelu, step));
    EXPECT_NE(made.find(std::string("MatMul(x, w, b) {") + attributes + "}"), made.npos) << made;
  };
  ends("Relu(p)", R"(activation = "Relu", activation_params = [])");
  ends("HardSwish(p)", R"(activation = "HardSwish", activation_params = [])");
  ends("Gelu(p) {approximate = \"tanh\"}", R"(activation = "FastGelu", activation_params = [])");
  ends("com.microsoft.Gelu(p)", R"(activation = "Gelu", activation_params = [])");
  ends("com.microsoft.FastGelu(p)", R"(activation = "FastGelu", activation_params = [])");
  ends("com.microsoft.QuickGelu(p) {alpha = 1.5}", R"(activation = "QuickGelu", activation_params = [1.5])");
  ends("LeakyRelu(p) {alpha = 0.5}", R"(activation = "LeakyRelu", activation_params = [0.5])");
}

TEST(ProductActivations, OfSiluInTwoSteps) {
  const std::string made =
      after("product_activations", replaced(kProduct, "y: f16[n, s, 8] = Gelu(p)  # \"gelu\"",
                                            "g: f16[n, s, 8] = Sigmoid(p)\ny: f16[n, s, 8] = Mul(g, p)"));
  EXPECT_NE(made.find("y: f16[n, s, 8] = MatMul(x, w, b) {activation = \"Silu\", activation_params = []}"), made.npos)
      << made;
}

TEST(ProductActivations, OfOtherProducts) {
  const std::string fused = after(
      "product_activations", replaced(kProduct, "MatMul(x, w, b)", "com.microsoft.FusedMatMul(x, w) {alpha = 0.5}"));
  EXPECT_NE(fused.find("com.microsoft.FusedMatMul(x, w) {activation = \"Gelu\", activation_params = [], alpha = 0.5}"),
            fused.npos)
      << fused;
  const std::string gemm = after("product_activations",
                                 replaced(replaced(replaced(replaced(kProduct, "in x: f16[n, s, 4]", "in x: f16[n, 4]"),
                                                            "p: f16[n, s, 8]", "p: f16[n, 8]"),
                                                   "y: f16[n, s, 8]", "y: f16[n, 8]"),
                                          "MatMul(x, w, b)", "Gemm(x, w, b) {alpha = 0.5}"));
  EXPECT_NE(gemm.find("Gemm(x, w, b) {activation = \"Gelu\", activation_params = [], alpha = 0.5}"), gemm.npos) << gemm;
}

// As onnxruntime leaves it, which makes Gemm of a product and its bias.
TEST(ProductActivations, WhatIsReshapedInBetweenIsReshapedAfterwards) {
  const std::string reshaped =
      replaced(replaced(kProduct, "const b", "const shape: i64[2]\nconst b"), "y: f16[n, s, 8] = Gelu(p)",
               "r: f16[m, 8] = Reshape(p, shape)  # \"rows\"\n"
               "y: f16[m, 8] = Gelu(r)");
  EXPECT_EQ(after("product_activations", reshaped), R"(in x: f16[n, s, 4]
const w: f16[4, 8]
const b: f16[8]
const shape: i64[2]
p: f16[n, s, 8] = MatMul(x, w, b) {activation = "Gelu", activation_params = []}  # "product and gelu"
y: f16[m, 8] = Reshape(p, shape)  # "rows"
out y
)");
}

TEST(ProductActivations, ItsBiasIsTheProducts) {
  const std::string plain = replaced(kProduct, "MatMul(x, w, b)", "MatMul(x, w)");
  const std::string made = after("product_activations", replaced(plain, kGelu, "com.microsoft.BiasGelu(p, b)"));
  EXPECT_NE(made.find("y: f16[n, s, 8] = MatMul(x, w, b) {activation = \"Gelu\""), made.npos) << made;
  expect_stays("product_activations", kProduct, kGelu, "com.microsoft.BiasGelu(p, b)");
}

TEST(ProductActivations, NotWhatOthersRead) {
  const auto stays = [](const char* part, const char* by) { expect_stays("product_activations", kProduct, part, by); };
  stays("out y", "out y\nout p");
  stays("out y", "z: f16[n, s, 8] = Neg(p)\nout y\nout z");
  stays("const w", "in w");
  stays(kGelu, "Erf(p)");
  stays("MatMul(x, w, b)", "MatMul(x, w, b) {activation = \"Relu\", activation_params = []}");
}

TEST(ProductActivations, NotWhatGoesWithAnElementwiseStep) {
  expect_stays("product_activations", kProduct, "out y", "z: f16[n, s, 8] = Neg(y)\nout z");
}

TEST(ProductActivations, NotOfFloats) {
  std::string floats = kProduct;
  for (size_t at = 0; (at = floats.find("f16", at)) != floats.npos;) floats.replace(at, 3, "f32");
  EXPECT_EQ(after("product_activations", floats), text_of(plan_from(floats)));
}

TEST(ProductActivations, SayWhyTheyStay) {
  EXPECT_EQ(
      notes_of("product_activations", replaced(kProduct, "out y", "z: f16[n, s, 8] = Neg(y)\nout z")),
      Notes{"MatMul node 'product' does not become a product and its activation: an elementwise step behind takes "
            "the activation along"});
  EXPECT_EQ(notes_of("product_activations", replaced(kProduct, kGelu, "com.microsoft.BiasGelu(p, b)")),
            Notes{"MatMul node 'product' does not become a product and its activation: what the activation adds is no "
                  "constant, or the product has a bias"});
  EXPECT_EQ(notes_of("product_activations", kProduct), Notes{});
  EXPECT_EQ(notes_of("product_activations", replaced(kProduct, kGelu, "Erf(p)")), Notes{});
}

}  // namespace
}  // namespace encore::fuse::tests
