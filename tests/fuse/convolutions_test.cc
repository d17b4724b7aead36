#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

std::string joined(const std::string& text) { return after("convolutions", text); }

constexpr const char* kBlock = R"(in x: f16[n, 8, 8, 16]
in r: f16[n, 8, 8, 16]
const w: f16[16, 16, 1, 1]
c: f16[n, 8, 8, 16] = com.ms.internal.nhwc.Conv(x, w) {kernel_shape = [1, 1]}  # "conv"
s: f16[n, 8, 8, 16] = Add(r, c)
y: f16[n, 8, 8, 16] = Relu(s)
out y
)";

TEST(Convolutions, TakeAlongWhatFollows) {
  EXPECT_EQ(joined(kBlock), R"(in x: f16[n, 8, 8, 16]
in r: f16[n, 8, 8, 16]
const w: f16[16, 16, 1, 1]
y: f16[n, 8, 8, 16] = com.ms.internal.nhwc.FusedConv(x, w, _, r) {activation = "Relu", activation_params = [], kernel_shape = [1, 1]}  # "conv"
out y
)");
}

TEST(Convolutions, OrOneOfThese) {
  EXPECT_NE(joined(replaced(kBlock, "Relu(s)", "Exp(s)")).find("s: f16[n, 8, 8, 16] = com.ms.internal.nhwc.FusedConv("),
            std::string::npos);
  EXPECT_NE(joined(replaced(kBlock, "s: f16[n, 8, 8, 16] = Add(r, c)\ny: f16[n, 8, 8, 16] = Relu(s)", "y = Relu(c)"))
                .find("FusedConv(x, w, _, _) {activation = \"Relu\""),
            std::string::npos);
}

TEST(Convolutions, ActivationsHaveTheirNumbers) {
  const auto ends = [](const char* by, const char* wanted) {
    const std::string made = joined(replaced(kBlock, "y: f16[n, 8, 8, 16] = Relu(s)", by));
    EXPECT_NE(made.find(wanted), made.npos) << made;
  };
  ends("y = LeakyRelu(s)", "activation = \"LeakyRelu\", activation_params = [0.01]");
  ends("y = Clip@6(s) {max = 6.0, min = 0.0}", "activation = \"Clip\", activation_params = [0.0, 6.0]");
  ends("y = Clip(s, r)", "s: f16[n, 8, 8, 16] = com.ms");
  ends("g = Sigmoid(s)\ny = Mul(s, g)", "activation = \"Silu\"");
  ends("g = Sigmoid(s)\ny = Mul(g, s)", "activation = \"Silu\"");
  ends("y = Gelu@20(s)", "activation = \"Gelu\", activation_params = []");
}

TEST(Convolutions, ScaleWhatTheyEndWith) {
  const auto ends = [](const std::string& by, const char* wanted) {
    const std::string made =
        joined(replaced(kBlock, "y: f16[n, 8, 8, 16] = Relu(s)", "const two: f16[1] = [2]\n" + by));
    EXPECT_NE(made.find(wanted), made.npos) << made;
  };
  ends("a: f16[n, 8, 8, 16] = HardSwish(s)\nb: f16[n, 8, 8, 16] = Mul(two, a)\ny = Add(b, two)",
       "activation = \"ScaledHardSwish\", activation_params = [2.0, 2.0]");
  ends("a: f16[n, 8, 8, 16] = Relu(s)\ny = Mul(a, two)", "activation = \"ScaledRelu\", activation_params = [2.0, 0.0]");
  ends("a: f16[n, 8, 8, 16] = Relu(s)\ny = Add(a, two)", "activation = \"ScaledRelu\", activation_params = [1.0, 2.0]");
  ends("a: f16[n, 8, 8, 16] = Relu(s)\nb: f16[n, 8, 8, 16] = Mul(a, two)\ny = Add(b, a)",
       "activation = \"Relu\", activation_params = []");
  ends("a: f16[n, 8, 8, 16] = Sigmoid(s)\ny = Mul(a, two)", "activation = \"Sigmoid\", activation_params = []");
  ends("a: f16[n, 8, 8, 16] = Relu(s)\ny = Mul(a, r)", "activation = \"Relu\", activation_params = []");
}

TEST(Convolutions, OfShapesThatMayDifferNoSum) {
  const auto keeps = [](const char* part, const char* by) {
    const std::string made = joined(replaced(kBlock, part, by));
    EXPECT_NE(made.find(" = Add("), made.npos) << made;
  };
  keeps("in r: f16[n, 8, 8, 16]", "in r: f16[1, 8, 8, 16]");
  keeps("in r: f16[n, 8, 8, 16]", "in r: f16[?, 8, 8, 16]");
  keeps("in r: f16[n, 8, 8, 16]", "in r: f16");
  keeps("in r", "const r");
  keeps("Add(r, c)", "Add(c, c)");
  keeps("out y", "out y\nout c");
}

TEST(Convolutions, OtherReadersWantWhatIsBetween) {
  const std::string made = joined(replaced(kBlock, "out y", "out y\nout s"));
  EXPECT_NE(made.find("y: f16[n, 8, 8, 16] = Relu(s)"), made.npos) << made;
  const std::string gated = joined(
      replaced(kBlock, "y: f16[n, 8, 8, 16] = Relu(s)", "g = Sigmoid(s)\ny = Mul(s, g)\nz = Exp(g)") + "out z\n");
  EXPECT_NE(gated.find("g = Sigmoid(s)"), gated.npos) << gated;
}

constexpr const char* kTokens = R"(in x: f16[n, 6, 6, 16]
const w: f16[16, 1, 3, 3]
const bias: f16[16]
const flat: i64[3] = [0, 36, 16]
c: f16[n, 6, 6, 16] = com.ms.internal.nhwc.Conv@11(x, w, bias) {group = 16, kernel_shape = [3, 3]}  # "conv"
t: f16[n, 36, 16] = Reshape(c, flat)
y: f16[n, 36, 16] = Gelu(t)
out y
)";

TEST(DepthwiseConvolutions, TakeActivationsAlongPastWhatMoves) {
  EXPECT_EQ(after("convolution_activations", kTokens), R"(in x: f16[n, 6, 6, 16]
const w: f16[16, 1, 3, 3]
const bias: f16[16]
const flat: i64[3] = [0, 36, 16]
c: f16[n, 6, 6, 16] = com.ms.internal.nhwc.FusedConv(x, w, bias, _) {activation = "Gelu", activation_params = [], group = 16, kernel_shape = [3, 3]}  # "conv"
y: f16[n, 36, 16] = Reshape(c, flat)
out y
)");
}
TEST(DepthwiseConvolutions, HaveOneOfThese) {
  const auto ends = [](const char* by, const char* wanted) {
    const std::string made = after("convolution_activations", replaced(kTokens, "Gelu(t)", by));
    EXPECT_NE(made.find(wanted), made.npos) << made;
  };
  ends("Gelu@20(t) {approximate = \"tanh\"}", "\"FastGelu\", activation_params = []");
  ends("com.microsoft.FastGelu(t)", "\"FastGelu\", activation_params = []");
  ends("com.microsoft.QuickGelu(t) {alpha = 2.0}", "\"QuickGelu\", activation_params = [2.0]");
  ends("Relu(t)", "\"Relu\"");
  const std::string direct =
      after("convolution_activations",
            replaced(kTokens, "t: f16[n, 36, 16] = Reshape(c, flat)\ny: f16[n, 36, 16] = Gelu(t)", "y = Gelu(c)"));
  EXPECT_NE(direct.find("y = com.ms.internal.nhwc.FusedConv("), direct.npos) << direct;
}
TEST(DepthwiseConvolutions, StayAsTheyAreOtherwise) {
  const auto stays = [](const char* part, const char* by) {
    expect_stays("convolution_activations", kTokens, part, by);
  };
  stays("Gelu(t)", "Exp(t)");
  stays("Gelu(t)", "com.microsoft.FastGelu(t, bias)");
  stays("out y", "out y\nout c");
  stays("out y", "out y\nout t");
  stays("c: f16[n, 6", "c: f32[n, 6");
  stays("Reshape(c, flat)", "Concat(c, flat)");
}

TEST(PointwiseConvolutions, TakeActivationsAlong) {
  constexpr const char* kPixels = R"(in x: f16[n, 6, 6, 16]
const w: f16[32, 16, 1, 1]
c: f16[n, 6, 6, 32] = com.ms.internal.nhwc.Conv@11(x, w) {group = 1, kernel_shape = [1, 1], pads = [0, 0, 0, 0], strides = [1, 1]}  # "conv"
y: f16[n, 6, 6, 32] = Gelu(c)
out y
)";
  EXPECT_NE(after("convolution_activations", kPixels)
                .find("y: f16[n, 6, 6, 32] = com.ms.internal.nhwc.FusedConv(x, w, _, _) {activation = \"Gelu\""),
            std::string::npos);
  const auto stays = [](const char* part, const char* by) {
    expect_stays("convolution_activations", kPixels, part, by);
  };
  stays("Gelu(c)", "Exp(c)");
  stays("c: f16[n, 6", "c: f64[n, 6");
}

TEST(PointwiseConvolutions, TakeActivationsAlongInFloatsToo) {
  constexpr const char* kPixels = R"(in x: f32[n, 6, 6, 16]
const w: f32[32, 16, 1, 1]
c: f32[n, 6, 6, 32] = com.ms.internal.nhwc.Conv@11(x, w) {group = 1, kernel_shape = [1, 1], pads = [0, 0, 0, 0], strides = [1, 1]}  # "conv"
y: f32[n, 6, 6, 32] = Gelu(c)
out y
)";
  EXPECT_NE(after("convolution_activations", kPixels).find("(x, w, _, _) {activation = \"Gelu\""), std::string::npos);
  expect_stays("convolution_activations", kPixels, "group = 1", "group = 2");
  expect_stays("convolution_activations", kPixels, "strides = [1, 1]", "strides = [2, 2]");
}

TEST(OtherConvolutions, TakeActivationsAlongThatTheLibraryHas) {
  constexpr const char* kDense = R"(in x: f16[n, 6, 6, 16]
const w: f16[32, 16, 3, 3]
const flat: i64[3] = [0, 16, 32]
c: f16[n, 4, 4, 32] = com.ms.internal.nhwc.Conv@11(x, w) {group = 1, kernel_shape = [3, 3]}  # "conv"
t: f16[n, 16, 32] = Reshape(c, flat)
y: f16[n, 16, 32] = Gelu(t)
out y
)";
  const auto ends = [](const char* by, const char* wanted) {
    const std::string made = after("convolution_activations", replaced(kDense, "Gelu(t)", by));
    EXPECT_NE(made.find(text("FusedConv(x, w, _, _) {activation = \"", wanted, '"')), made.npos) << made;
  };
  ends("Gelu(t)", "Gelu");
  ends("com.microsoft.FastGelu(t)", "FastGelu");
  ends("Relu(t)", "Relu");
  const auto stays = [](const char* part, const char* by) {
    expect_stays("convolution_activations", kDense, part, by);
  };
  stays("Gelu(t)", "HardSwish(t)");
  stays("Gelu(t)", "com.microsoft.QuickGelu(t) {alpha = 2.0}");
  stays("c: f16[n, 4", "c: f32[n, 4");
  const auto why = [](const char* by) { return notes_of("convolution_activations", replaced(kDense, "Gelu(t)", by)); };
  EXPECT_EQ(why("HardSwish(t)"), Notes{"Conv node 'conv' does not become a convolution and its activation: only "
                                       "depthwise and pointwise ones end with this activation"});
  EXPECT_EQ(why("Gelu(t)"), Notes{});
  EXPECT_EQ(why("Exp(t)"), Notes{});
}

}  // namespace
}  // namespace encore::fuse::tests
