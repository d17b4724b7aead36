#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr std::string_view kPass = "convolution_sums";

// RepVGG's, of a channel each.
constexpr const char* kBlock = R"(in x: f32[n, 2, h, w]
const w3: f32[2, 1, 1, 3] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
const b3: f32[2] = [1.0, 2.0]
const w1: f32[2, 1, 1, 1] = [10.0, 20.0]
const b1: f32[2] = [0.5, 0.25]
const scale: f32[2] = [1.0, 2.0]
const shift: f32[2] = [0.5, 0.25]
const mean: f32[2] = [1.0, 2.0]
const variance: f32[2] = [3.0, 15.0]
c3: f32[n, 2, h, w] = Conv(x, w3, b3) {group = 2, pads = [0, 1, 0, 1]}  # "wide"
c1: f32[n, 2, h, w] = Conv(x, w1, b1) {group = 2, kernel_shape = [1, 1]}  # "narrow"
z: f32[n, 2, h, w] = BatchNormalization(x, scale, shift, mean, variance) {epsilon = 1.0}  # "norm"
s: f32[n, 2, h, w] = Add(c3, c1)
y: f32[n, 2, h, w] = Add(z, s)
out y
)";

// Its last two lines, and constants before those, are others.
std::string block(const std::string& sum, const std::string& constants = "") {
  const std::string text = replaced(kBlock, "s: f32[n, 2, h, w] = Add(c3, c1)\ny: f32[n, 2, h, w] = Add(z, s)\n", sum);
  return replaced(text, "c3: f32", constants + "c3: f32");
}

void expect_unchanged(const std::string& text) { EXPECT_EQ(after(kPass, text), text_of(plan_from(text))); }

void expect_lines(const std::string& made, std::initializer_list<const char*> lines) {
  for (const char* line : lines) EXPECT_NE(made.find(line), made.npos) << "no '" << line << "' in\n" << made;
}

// Two convolutions of one line of a channel, or of something else, by the attributes that they have.
std::string pair(const std::string& wide, const std::string& narrow, const std::string& dims = "l",
                 const std::string& ones = "[1, 1, 1] = [10.0]",
                 const std::string& weights = "[1, 1, 3] = [1.0, 2.0, 3.0]") {
  return "in x: f32[n, 1, " + dims + "]\nconst w3: f32" + weights + "\nconst w1: f32" + ones +
         "\na: f32 = Conv(x, w3) {" + wide + "}  # \"wide\"\nb: f32 = Conv(x, w1) {" + narrow +
         "}  # \"narrow\"\ny: f32 = Add(a, b)\nout y\n";
}

// That they are one, by these weights.
void expect_sum(const std::string& text, const char* weights) {
  const std::string made = after(kPass, text);
  expect_lines(made, {weights, "y: f32 = Conv(x, "});
  EXPECT_EQ(made.find(" Add("), made.npos) << made;
}

TEST(ConvolutionSums, AreOneConvolution) {
  EXPECT_EQ(after(kPass, kBlock), R"(in x: f32[n, 2, h, w]
const w3: f32[2, 1, 1, 3] = [1.0, 12.5, 3.0, 4.0, 25.5, 6.0]
const "wide and narrow's biases": f32[2] = [1.5, 1.5]
y: f32[n, 2, h, w] = Conv(x, w3, "wide and narrow's biases") {group = 2, pads = [0, 1, 0, 1]}  # "wide and narrow"
out y
)");
}

TEST(ConvolutionSums, WithThePictureItself) {
  expect_lines(after(kPass, block("s: f32[n, 2, h, w] = Add(x, c1)\ny: f32[n, 2, h, w] = Add(s, x)\n")),
               {"w1: f32[2, 1, 1, 1] = [12.0, 22.0]", "= [0.5, 0.25]",
                "y: f32[n, 2, h, w] = Conv(x, w1, \"narrow's biases\") {group = 2, kernel_shape = [1, 1]}"});
}

// Its channels are in two groups.
TEST(ConvolutionSums, OfChannelsInGroups) {
  EXPECT_EQ(after(kPass, R"(in x: f32[n, 4, l]
const w: f32[4, 2, 1] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
c: f32[n, 4, l] = Conv(x, w) {group = 2}  # "conv"
y: f32[n, 4, l] = Add(c, x)
out y
)"),
            R"(in x: f32[n, 4, l]
const w: f32[4, 2, 1] = [2.0, 2.0, 3.0, 5.0, 6.0, 6.0, 7.0, 9.0]
y: f32[n, 4, l] = Conv(x, w) {group = 2}  # "conv"
out y
)");
}

// FastViT's mixer: the norm is read twice, and cancels out.
TEST(ConvolutionSums, WithDifferencesAndFactors) {
  EXPECT_EQ(after(kPass, block(R"(s: f32[n, 2, h, w] = Add(c3, z)
t: f32[n, 2, h, w] = Add(s, c1)
d: f32[n, 2, h, w] = Sub(t, z)
m: f32[n, 2, h, w] = Mul(gamma, d)
p: f32[n, 2, h, w] = Add(x, m)
y: f32[n, 2, h, w] = Mul(p, half)
)",
                               "const gamma: f32[2, 1, 1] = [2.0, 4.0]\nconst half: f32[] = 0.5\n")),
            R"(in x: f32[n, 2, h, w]
const w3: f32[2, 1, 1, 3] = [1.0, 12.5, 3.0, 8.0, 50.5, 12.0]
const "wide and narrow's biases": f32[2] = [1.5, 4.5]
y: f32[n, 2, h, w] = Conv(x, w3, "wide and narrow's biases") {group = 2, pads = [0, 1, 0, 1]}  # "wide and narrow"
out y
)");
}

TEST(ConvolutionSums, AsFarAsTheyAreOfOnePicture) {
  const std::string other = replaced(kBlock, "in x: f32[n, 2, h, w]", "in x: f32[n, 2, h, w]\nin r: f32[n, 2, h, w]");
  expect_lines(after(kPass, replaced(other, "Add(z, s)", "Add(r, s)")),
               {"s: f32[n, 2, h, w] = Conv(x, w3", "[1.0, 12.0, 3.0, 4.0, 25.0, 6.0]", "= Add(r, s)"});
  expect_lines(after(kPass, replaced(other, "Conv(x, w1", "Conv(r, w1")), {"Conv(x, w3", "Conv(r, w1", "Add(z, s)"});
}

TEST(ConvolutionSums, WithChannelsLast) {
  std::string text = kBlock;
  for (size_t at; (at = text.find("n, 2, h, w")) != text.npos;) text.replace(at, 10, "n, h, w, 2");
  text = replaced(text, "= Conv(x, w3", "= com.ms.internal.nhwc.Conv@11(x, w3");
  text = replaced(text, "= Conv(x, w1", "= com.ms.internal.nhwc.Conv@11(x, w1");
  text = replaced(text, "= Batch", "= com.ms.internal.nhwc.Batch");
  text = replaced(replaced(text, "(x, scale", "@15(x, scale"), "Add(z, s)", "Mul(t, gamma)");
  text = replaced(text, "y: f32", "t: f32[n, h, w, 2] = Add(s, z)\ny: f32");
  text = replaced(text, "c3: f32", "const gamma: f32[1, 2] = [1.0, 2.0]\nc3: f32");
  expect_lines(after(kPass, text), {"[1.0, 12.5, 3.0, 8.0, 51.0, 12.0]", "= [1.5, 3.0]",
                                    "y: f32[n, h, w, 2] = com.ms.internal.nhwc.Conv@11(x, w3"});
  expect_lines(after(kPass, replaced(text, "gamma: f32[1, 2]", "gamma: f32[2, 1]")), {"= Mul(t, gamma)"});
}

TEST(ConvolutionSums, WhereWindowsStopAtTheSamePlaces) {
  const char *const first = "[11.0, 2.0, 3.0]", *const centre = "[1.0, 12.0, 3.0]";
  expect_sum(pair("pads = [1, 1]", ""), centre);
  expect_sum(pair("pads = [1, 1], strides = [2]", "strides = [2]"), centre);
  expect_sum(pair("dilations = [2], pads = [2, 2]", "dilations = [5]"), centre);
  expect_sum(pair("pads = [2, 2]", "pads = [1, 1]"), centre);
  expect_sum(pair("pads = [0, 2]", ""), first);
  expect_sum(pair("strides = [4]", "strides = [4]", "4"), first);
  expect_sum(pair("auto_pad = \"SAME_LOWER\"", "auto_pad = \"VALID\""), centre);
  expect_sum(pair("auto_pad = \"SAME_UPPER\", strides = [2]", "strides = [2]", "6"), first);
  expect_sum(pair("auto_pad = \"SAME_UPPER\", strides = [2]", "strides = [2]", "7"), centre);
  for (const auto& [wide, narrow] : std::initializer_list<std::pair<const char*, const char*>>{
           {"", ""},
           {"strides = [4]", "strides = [4]"},
           {"pads = [1, 1]", "strides = [2]"},
           {"pads = [1, 0]", ""},
           {"pads = [0, 0]", "pads = [1, 1]"},
           {"pads = [3, 3]", "pads = [2, 0]"},
           {"dilations = [2], pads = [3, 1]", ""},
           {"auto_pad = \"SAME_UPPER\", strides = [2]", "strides = [2]"},
           {"auto_pad = \"OTHER\"", ""},
           {"kernel_shape = [5], pads = [1, 1]", ""}})
    expect_unchanged(pair(wide, narrow));
}

TEST(ConvolutionSums, OfWindowsThatLieInTheWidest) {
  const char *const row = "[1, 1, 5] = [1.0, 2.0, 3.0, 4.0, 5.0]", *const three = "[1, 1, 3] = [10.0, 20.0, 30.0]";
  expect_sum(pair("pads = [2, 2]", "pads = [1, 1]", "l", three, row), "[1.0, 12.0, 23.0, 34.0, 5.0]");
  expect_sum(pair("pads = [2, 2]", "dilations = [2], pads = [2, 2]", "l", three, row), "[11.0, 2.0, 23.0, 4.0, 35.0]");
  expect_sum(pair("", "", "l", "[1, 1, 1] = [10.0]", "[1, 1, 1] = [1.0]"), "[11.0]");
  const char* const square = "[1, 1, 2, 3] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]";
  expect_sum(pair("pads = [1, 1, 0, 1]", "", "h, w", "[1, 1, 1, 1] = [10.0]", square),
             "[1.0, 2.0, 3.0, 4.0, 15.0, 6.0]");
  expect_sum(pair("pads = [1, 1, 0, 1]", "pads = [1, 0, 0, 0]", "h, w", "[1, 1, 2, 1] = [10.0, 20.0]", square),
             "[1.0, 12.0, 3.0, 4.0, 25.0, 6.0]");
  expect_sum(
      pair("pads = [1, 0, 0, 1, 0, 0]", "", "d, h, w", "[1, 1, 1, 1, 1] = [10.0]", "[1, 1, 3, 1, 1] = [1.0, 2.0, 3.0]"),
      "[1.0, 12.0, 3.0]");
  // None has all taps, or they lie between those of the wider one.
  expect_unchanged(pair("pads = [1, 0, 1, 0]", "pads = [0, 1, 0, 1]", "h, w", "[1, 1, 1, 3] = [1.0, 2.0, 3.0]",
                        "[1, 1, 3, 1] = [1.0, 2.0, 3.0]"));
  expect_unchanged(pair("dilations = [2], pads = [4, 4]", "pads = [1, 1]", "l", three, row));
}

TEST(ConvolutionSums, ThePictureStaysWhereItIsNoSummand) {
  expect_unchanged(R"(in x: f32[n, 1, h, w]
const w: f32[2, 1, 1, 1] = [1.0, 2.0]
c: f32[n, 2, h, w] = Conv(x, w)
y: f32[n, 2, h, w] = Add(c, x)
out y
)");
  expect_unchanged(R"(in x: f32[n, 1, 1, 1]
const w: f32[1, 1, 1, 1] = [2.0]
c: f32[n, 1, 1, 1] = Conv(x, w) {strides = [2, 2]}
y: f32[n, 1, 1, 1] = Add(c, x)
out y
)");
}

TEST(ConvolutionSums, WhatOthersReadStays) {
  const auto stays = [](const std::string& part, const std::string& by) { expect_stays(kPass, kBlock, part, by); };
  expect_lines(after(kPass, replaced(kBlock, "out y", "out y\nout z")), {"s: f32[n, 2, h, w] = Conv(", "Add(z, s)"});
  expect_lines(after(kPass, replaced(kBlock, "out y", "out y\nr: f32[n, 2, h, w] = Relu(z)\nout r")), {"Add(z, s)"});
  stays("out y", "out y\nout c1");
  stays("out y", "out y\nout c3");
  stays("out y", "r: f32[n, 2, h, w] = Relu(c1)\nout y\nout r");
  stays("out y", "r: f32[2, 1, 1, 1] = Relu(w1)\nout y\nout r");
}

TEST(ConvolutionSums, OfNoConstantsStay) {
  const auto stays = [](const std::string& part, const std::string& by) { expect_stays(kPass, kBlock, part, by); };
  stays("const w1: f32[2, 1, 1, 1] = [10.0, 20.0]", "in w1: f32[2, 1, 1, 1]");
  stays("const b1: f32[2] = [0.5, 0.25]", "in b1: f32[2]");
  stays("const b1: f32[2] = [0.5, 0.25]", "const b1: f32[1, 2] = [0.5, 0.25]");
  stays("in x: f32[n, 2, h, w]", "in x: f32");
  stays("Conv(x, w1, b1)", "Conv(x, w3, b1)");  // another one wants the weights, too
  expect_lines(after(kPass, replaced(kBlock, "const mean: f32[2] = [1.0, 2.0]", "in mean: f32[2]")), {"Add(z, s)"});
  expect_lines(after(kPass, replaced(kBlock, "{epsilon = 1.0}", "{training_mode = 1}")), {"Add(z, s)"});
  expect_unchanged(
      replaced(replaced(kBlock, "w1: f32[2, 1, 1, 1] = [10.0, 20.0]", "w1: f32[2, 2, 1, 1] = [1.0, 2.0, 3.0, 4.0]"),
               "{group = 2, kernel_shape = [1, 1]}", "{kernel_shape = [1, 1]}"));
}

// As of BatchNormalization and such, constants may be of other shapes.
TEST(ConvolutionSums, FactorsAreOfChannels) {
  const auto scaled = [](const char* gamma) {
    return after(kPass, block("s: f32[n, 2, h, w] = Mul(c1, gamma)\ny: f32[n, 2, h, w] = Add(s, gamma)\n",
                              std::string("const gamma: ") + gamma + "\n"));
  };
  expect_lines(scaled("f32[2, 1, 1] = [2.0, 4.0]"), {"[20.0, 80.0]", "[3.0, 5.0]", "y: f32[n, 2, h, w] = Conv(x"});
  expect_lines(scaled("f32[1, 2, 1, 1] = [2.0, 4.0]"), {"[20.0, 80.0]", "y: f32[n, 2, h, w] = Conv(x"});
  expect_lines(scaled("f32[1] = [2.0]"), {"[20.0, 40.0]", "[3.0, 2.5]", "y: f32[n, 2, h, w] = Conv(x"});
  for (const char* gamma :
       {"f32[2] = [2.0, 4.0]", "f32[2, 1] = [2.0, 4.0]", "f32[2, 1, 1, 1] = [2.0, 4.0]", "f32[1, 1, 1, 1, 1] = [2.0]"})
    expect_lines(scaled(gamma), {"= Mul(c1, gamma)", "= Add(s, gamma)"});
}

constexpr const char* kHalves = R"(in x: f16[n, 1, l]
const w3: f16[1, 1, 3] = [1.0, 1.25, 1.0]
const w1: f16[1, 1, 1] = [1.0]
const gamma: f16[] = 0.5
c3: f16[n, 1, l] = Conv(x, w3) {pads = [1, 1]}
c1: f16[n, 1, l] = Conv(x, w1)
s: f16[n, 1, l] = Add(c3, c1)
y: f16[n, 1, l] = Mul(s, gamma)
out y
)";

// Halves have few numbers near zero, and none so large.
TEST(ConvolutionSums, StayWhereRoundingLosesMore) {
  expect_lines(after(kPass, kHalves), {"[0.5, 1.125, 0.5]", "y: f16[n, 1, l] = Conv(x, w3)"});
  expect_stays(kPass, kHalves, "gamma: f16[] = 0.5", "gamma: f16[] = 1e-07");
  expect_stays(kPass, replaced(kHalves, "w1: f16[1, 1, 1] = [1.0]", "w1: f16[1, 1, 1] = [60000.0]"), "= 0.5", "= 2.0");
}

// Each value is read twice by the next step.
TEST(ConvolutionSums, OfManyStepsEnd) {
  std::string text = "in x: f32[n, 1, l]\nconst w: f32[1, 1, 1] = [1.0]\nd0: f32[n, 1, l] = Mul(x, w)\n";
  for (int i = 1; i < 80; ++i) {
    const std::string before = "d" + std::to_string(i - 1);
    text += "d" + std::to_string(i) + ": f32[n, 1, l] = Add(" + before + ", " + before + ")\n";
  }
  text += "const v: f32[1, 1, 1] = [1.0]\nc: f32[n, 1, l] = Conv(x, v)\ny: f32[n, 1, l] = Add(c, d79)\nout y\n";
  expect_unchanged(text);
}

}  // namespace
}  // namespace encore::fuse::tests
