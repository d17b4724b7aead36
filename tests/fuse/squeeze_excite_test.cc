#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kPass = "squeeze_excite";

// torchvision's, once its pictures have their channels last.
constexpr const char* kConvolutions = R"(in x: f16[n, 6, 6, 3]
const w: f16[2, 3, 1, 1] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
const b: f16[2] = [0.5, 0.25]
const v: f16[3, 2, 1, 1] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
const c: f16[3] = [0.5, 0.25, 0.125]
p: f16[n, 1, 1, 3] = com.ms.internal.nhwc.GlobalAveragePool(x)  # "mean"
s: f16[n, 1, 1, 2] = com.ms.internal.nhwc.FusedConv(p, w, b) {activation = "Silu", activation_params = []}
g: f16[n, 1, 1, 3] = com.ms.internal.nhwc.FusedConv(s, v, c) {activation = "HardSigmoid", activation_params = [0.25, 0.5]}
y: f16[n, 6, 6, 3] = Mul(g, x)  # "gated"
out y
)";

// Of rows, with their weights in either order.
constexpr const char* kRows = R"(in x: f16[n, 6, 6, 3]
const axes: i64[2] = [-2, 1]
const w: f16[3, 2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
const b: f16[2] = [0.5, 0.25]
const v: f16[3, 2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
const shape: i64[4] = [-1, 1, 1, 3]
p: f16[n, 1, 1, 3] = ReduceMean(x, axes)  # "mean"
t: f16[n, 3, 1, 1] = Transpose(p) {perm = [0, 3, 1, 2]}
f: f16[n, 3] = Flatten(t)
d: f16[n, 2] = MatMul(f, w, b)
r: f16[n, 2] = Relu(d)
e: f16[n, 3] = Gemm(r, v) {transB = 1}
a: f16[n, 3] = Sigmoid(e)
g: f16[n, 1, 1, 3] = Reshape(a, shape)
y: f16[n, 6, 6, 3] = Mul(x, g)  # "gated"
out y
)";

TEST(SqueezeExcite, WithGelu) {
  const std::string made = after(kPass, replaced(kRows, "Relu(d)", "Gelu@20(d)"));
  EXPECT_NE(made.find("squeeze_activation = \"Gelu\""), made.npos) << made;
}

TEST(SqueezeExcite, OfConvolutions) {
  EXPECT_EQ(after(kPass, kConvolutions), R"(in x: f16[n, 6, 6, 3]
const w: f16[2, 3, 1, 1] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
const b: f16[2] = [0.5, 0.25]
const "v turned": f16[2, 3] = [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]
const c: f16[3] = [0.5, 0.25, 0.125]
y: f16[n, 6, 6, 3] = encore.SqueezeExcite(x, w, b, "v turned", c) {activation = "", activation_params = [], gate_activation = "HardSigmoid", gate_activation_params = [0.25, 0.5], squeeze_activation = "Silu", squeeze_activation_params = []}  # "mean to gated"
out y
)");
}

TEST(SqueezeExcite, OfRows) {
  EXPECT_EQ(after(kPass, kRows), R"(in x: f16[n, 6, 6, 3]
const "w turned": f16[2, 3] = [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]
const b: f16[2] = [0.5, 0.25]
const "v turned": f16[2, 3] = [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]
y: f16[n, 6, 6, 3] = encore.SqueezeExcite(x, "w turned", b, "v turned", _) {activation = "", activation_params = [], gate_activation = "Sigmoid", gate_activation_params = [], squeeze_activation = "Relu", squeeze_activation_params = []}  # "mean to gated"
out y
)");
}

TEST(SqueezeExcite, OfConvolutionsAndActivationsApart) {
  const std::string apart =
      replaced(kConvolutions, "FusedConv(s, v, c) {activation = \"HardSigmoid\", activation_params = [0.25, 0.5]}\n",
               "Conv(s, v)\ng2: f16[n, 1, 1, 3] = Tanh(g)\n");
  const std::string made = after(kPass, replaced(apart, "Mul(g, x)", "Mul(x, g2)"));
  EXPECT_NE(made.find("SqueezeExcite(x, w, b, \"v turned\", _) {activation = \"\", activation_params = [], "
                      "gate_activation = \"Tanh\""),
            made.npos)
      << made;
}

// timm's, in blocks whose norms come first.
TEST(SqueezeExcite, TakesNormAndActivationAlong) {
  const std::string norm = R"(const one: f16[3] = [1.0, 1.0, 2.0]
const two: f16[3] = [0.0, 1.0, 1.0]
const mean: f16[3] = [0.0, 1.0, 0.5]
const variance: f16[3] = [0.75, 3.75, 0.75]
z: f16[n, 6, 6, 3] = com.ms.internal.nhwc.BatchNormalization(y, one, two, mean, variance) {epsilon = 0.25}  # "norm"
a: f16[n, 6, 6, 3] = Sigmoid(z)
o: f16[n, 6, 6, 3] = Mul(z, a)  # "silu"
out o
)";
  const std::string made = after(kPass, replaced(kConvolutions, "out y\n", norm));
  EXPECT_NE(made.find("\"mean to silu's factors\": f32[3] = [1.0, 0.5, 2.0]"), made.npos) << made;
  EXPECT_NE(made.find("\"mean to silu's summands\": f32[3] = [0.0, 0.5, 0.0]"), made.npos) << made;
  EXPECT_NE(made.find("\"mean to silu's summands\") {activation = \"Silu\""), made.npos) << made;
  const std::string kept = after(kPass, replaced(kConvolutions, "out y\n", norm + "out y\n"));
  EXPECT_NE(kept.find("\ny: f16[n, 6, 6, 3] = encore.SqueezeExcite("), kept.npos) << kept;
  EXPECT_NE(kept.find("BatchNormalization(y"), kept.npos) << kept;
}

TEST(SqueezeExcite, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays(kPass, kConvolutions, part, by); };
  stays("out y", "out y\nout p");
  stays("out y", "out y\nout s");
  stays("out y", "out y\nout g");
  stays("Mul(g, x)", "Mul(g, g)");
  stays("Mul(g, x)", "Mul@6(g, x)");
  stays("Mul(g, x)", "Add(g, x)");
  stays("in x: f16[n, 6, 6, 3]", "in x: f16[n, 6, 6, c]");
  stays("in x: f16[n, 6, 6, 3]", "in x: f16");
  stays("nhwc.GlobalAveragePool(x)", "nhwc.GlobalMaxPool(x)");
  stays("com.ms.internal.nhwc.GlobalAveragePool(x)", "GlobalAveragePool(x)");
  stays("activation = \"Silu\"", "group = 2, activation = \"Silu\"");
  stays("activation = \"Silu\"", "activation = \"Silu\", pads = [0, 0, 0, 1]");
  stays("FusedConv(p, w, b)", "FusedConv(p, w, b, p)");
  stays("w: f16[2, 3, 1, 1] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]", "w: f16[2, 3, 1, 1]");
  stays("v: f16[3, 2, 1, 1]", "v: f16[3, 2, 1, 1, 1]");
  stays("b: f16[2]", "b: f32[2]");
}

// As of a picture's means that are spread over it again: the second input is absent.
TEST(SqueezeExcite, AResizeIsNoProduct) {
  const std::string text = R"(in x: f16[n, 6, 6, 3]
const axes: i64[2] = [-2, 1]
const scales: f32[4] = [1.0, 6.0, 6.0, 1.0]
p: f16[n, 1, 1, 3] = ReduceMean(x, axes)
y: f16[n, 6, 6, 3] = Resize(p, _, scales)
out y
)";
  EXPECT_EQ(after(kPass, text), text_of(plan_from(text)));
}

TEST(SqueezeExcite, OfRowsStaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays(kPass, kRows, part, by); };
  stays("axes: i64[2] = [-2, 1]", "axes: i64[2] = [1, 1]");
  stays("axes: i64[2] = [-2, 1]", "axes: i64[2] = [2, 3]");
  stays("axes: i64[2] = [-2, 1]", "axes: i64[1] = [1]");
  stays("perm = [0, 3, 1, 2]", "perm = [3, 0, 1, 2]");
  stays("transB = 1", "alpha = 0.5, transB = 1");
  stays("transB = 1", "beta = 0.5, transB = 1");
  stays("v: f16[3, 2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]", "v: f16[3, 2]");
  stays("b: f16[2] = [0.5, 0.25]", "b: f16[1] = [0.5]");
  stays("g: f16[n, 1, 1, 3] =", "g: f16[n, 1, 3, 1] =");
  stays("out y", "out y\nout f");
  stays("out y", "out y\nout a");
}

TEST(SqueezeExcite, SaysWhyItStays) {
  const auto of_squeezed = [](const std::string& count) {
    const int64_t numbers = 3 * std::stoll(count);
    std::string weights = "1.0";
    for (int64_t i = 1; i < numbers; ++i) weights += ", 1.0";
    std::string text = replaced(kConvolutions, "w: f16[2, 3, 1, 1] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]",
                                "w: f16[" + count + ", 3, 1, 1] = [" + weights + "]");
    text = replaced(text, "v: f16[3, 2, 1, 1] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]",
                    "v: f16[3, " + count + ", 1, 1] = [" + weights + "]");
    return replaced(replaced(text, "const b: f16[2] = [0.5, 0.25]\n", ""), "FusedConv(p, w, b)", "FusedConv(p, w)");
  };
  EXPECT_EQ(
      notes_of(kPass, of_squeezed("1025")),
      Notes{"GlobalAveragePool node 'mean' does not become squeeze and excite: channels are squeezed to more than "
            "kernels take"});
  EXPECT_EQ(notes_of(kPass, of_squeezed("1024")), Notes{});
  EXPECT_EQ(notes_of(kPass, replaced(of_squeezed("1025"), "Mul(g, x)", "Add(g, x)")), Notes{});
}

}  // namespace
}  // namespace encore::fuse::tests
