#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kNorm = R"(in x: f16[n, 2, 3, 3]
const scale: f16[2] = [1.0, 2.0]
const shift: f16[2] = [0.5, 0.25]
const mean: f16[2] = [1.0, 2.0]
const variance: f16[2] = [3.0, 15.0]
z: f16[n, 2, 3, 3] = BatchNormalization(x, scale, shift, mean, variance) {epsilon = 1.0}  # "norm"
y: f16[n, 2, 3, 3] = Relu(z)
out y
)";

std::string opened(const std::string& text) {
  Plan plan = plan_from(text);
  plan.settings.fuses_elementwise = true;
  run(*std::ranges::find(passes(), std::string_view("batch_norms"), &Pass::name), plan);
  return text_of(plan);
}

TEST(BatchNorms, AreElementwiseInFloats) {
  const std::string made = opened(kNorm);
  EXPECT_NE(made.find("\"norm's factors\": f32[2, 1, 1] = [0.5, 0.5]"), made.npos) << made;
  EXPECT_NE(made.find("\"norm's summands\": f32[2, 1, 1] = [0.0, -0.75]"), made.npos) << made;
  EXPECT_NE(made.find("\"x times its factors\": f32[n, 2, 3, 3] = Mul(\"x in floats\", \"norm's factors\")"), made.npos)
      << made;
  EXPECT_NE(made.find("z: f16[n, 2, 3, 3] = Cast(\"x and its summands\") {to = 10}"), made.npos) << made;
}

// ConvMixer adds its picture to what is normed behind an activation.
TEST(BatchNorms, AheadOfASumAreElementwise) {
  const std::string sum =
      replaced(replaced(kNorm, "const scale", "in r: f16[n, 2, 3, 3]\nconst scale"), "Relu(z)", "Add(z, r)");
  const std::string made = opened(sum);
  EXPECT_EQ(made.find("BatchNormalization"), made.npos) << made;
  const std::string wider = replaced(replaced(sum, "in r: f16[n, 2, 3, 3]", "in r: f16[2, n, 2, 3, 3]"),
                                     "y: f16[n, 2, 3, 3]", "y: f16[2, n, 2, 3, 3]");
  EXPECT_EQ(opened(wider), text_of(plan_from(wider)));
}

TEST(BatchNorms, WithChannelsLast) {
  const std::string last =
      replaced(replaced(replaced(replaced(kNorm, "in x: f16[n, 2, 3, 3]", "in x: f32[n, 3, 3, 2]"),
                                 "z: f16[n, 2, 3, 3] = Batch", "z: f32[n, 3, 3, 2] = com.ms.internal.nhwc.Batch"),
                        "y: f16[n, 2, 3, 3]", "y: f32[n, 3, 3, 2]"),
               "(x, scale", "@15(x, scale");
  const std::string made = opened(last);
  EXPECT_NE(made.find("\"norm's factors\": f32[2] = [0.5, 0.5]"), made.npos) << made;
  EXPECT_NE(made.find("z: f32[n, 3, 3, 2] = Add(\"x times its factors\", \"norm's summands\")"), made.npos) << made;
}

TEST(BatchNorms, OfRowsAreFoldedIntoTheirProduct) {
  constexpr const char* kRows = R"(in x: f32[n, 4, 2]
const w: f32[2, 2] = [1.0, 2.0, 3.0, 4.0]
const rows: i64[2] = [-1, 2]
const scale: f32[2] = [1.0, 2.0]
const shift: f32[2] = [0.5, 0.25]
const mean: f32[2] = [1.0, 2.0]
const variance: f32[2] = [3.0, 15.0]
p: f32[n, 4, 2] = MatMul(x, w)  # "product"
r: f32[m, 2] = Reshape(p, rows)
z: f32[m, 2] = BatchNormalization(r, scale, shift, mean, variance) {epsilon = 1.0}  # "norm"
y: f32[m, 2] = Relu(z)
out y
)";
  EXPECT_EQ(after("folded_batch_norms", kRows), R"(in x: f32[n, 4, 2]
const w: f32[2, 2] = [0.5, 1.0, 1.5, 2.0]
const "product and norm's summands": f32[2] = [0.0, -0.75]
const rows: i64[2] = [-1, 2]
p: f32[n, 4, 2] = MatMul(x, w, "product and norm's summands")  # "product and norm"
r: f32[m, 2] = Reshape(p, rows)
y: f32[m, 2] = Relu(r)
out y
)");
  expect_stays("folded_batch_norms", kRows, "out y", "out y\nout p");
  expect_stays("folded_batch_norms", kRows, "const w: f32[2, 2] = [1.0, 2.0, 3.0, 4.0]", "in w: f32[2, 2]");
}

TEST(BatchNorms, OfFlattenedRowsWhoseShapeIsRead) {
  constexpr const char* kRows = R"(in x: f32[n, 4, 2]
const w: f32[2, 2] = [1.0, 2.0, 3.0, 4.0]
const scale: f32[2] = [1.0, 2.0]
const shift: f32[2] = [0.5, 0.25]
const mean: f32[2] = [1.0, 2.0]
const variance: f32[2] = [3.0, 15.0]
p: f32[n, 4, 2] = MatMul(x, w)  # "product"
s: i64[3] = Shape(p)
r: f32[m, 2] = Flatten(p) {axis = 2}
z: f32[m, 2] = BatchNormalization(r, scale, shift, mean, variance) {epsilon = 1.0}  # "norm"
y: f32[n, 4, 2] = Reshape(z, s)
out y
)";
  EXPECT_EQ(after("folded_batch_norms", kRows), R"(in x: f32[n, 4, 2]
const w: f32[2, 2] = [0.5, 1.0, 1.5, 2.0]
const "product and norm's summands": f32[2] = [0.0, -0.75]
p: f32[n, 4, 2] = MatMul(x, w, "product and norm's summands")  # "product and norm"
s: i64[3] = Shape(p)
r: f32[m, 2] = Flatten(p) {axis = 2}
y: f32[n, 4, 2] = Reshape(r, s)
out y
)");
  expect_stays("folded_batch_norms", kRows, "s: i64[3] = Shape(p)", "q: f32[n, 4, 2] = Relu(p)\ns: i64[3] = Shape(p)");
  expect_stays("folded_batch_norms", kRows, "out y", "out y\nout r");
  expect_stays("folded_batch_norms", kRows, "r: f32[m, 2] = Flatten(p) {axis = 2}", "r: f32[n, 8] = Flatten(p)");
}

TEST(BatchNorms, AreFoldedIntoTheNextConvolution) {
  constexpr const char* kAhead = R"(in x: f32[n, 2, 3, 3]
const w: f32[2, 1, 1, 2] = [1.0, 2.0, 3.0, 4.0]
const b: f32[2] = [1.0, 2.0]
const scale: f32[2] = [1.0, 2.0]
const shift: f32[2] = [0.5, 0.25]
const mean: f32[2] = [0.5, 2.0]
const variance: f32[2] = [3.0, 15.0]
z: f32[n, 2, 3, 3] = BatchNormalization(x, scale, shift, mean, variance) {epsilon = 1.0}  # "norm"
y: f32[n, 2, 3, 2] = Conv(z, w, b) {group = 2, kernel_shape = [1, 2]}  # "conv"
out y
)";
  EXPECT_EQ(after("batch_norms_ahead", kAhead), R"(in x: f32[n, 2, 3, 3]
const w: f32[2, 1, 1, 2] = [0.5, 1.0, 1.5, 2.0]
const "norm and conv's biases": f32[2] = [1.75, -3.25]
y: f32[n, 2, 3, 2] = Conv(x, w, "norm and conv's biases") {group = 2, kernel_shape = [1, 2]}  # "norm and conv"
out y
)");
  expect_stays("batch_norms_ahead", kAhead, "kernel_shape = [1, 2]", "kernel_shape = [1, 2], pads = [0, 0, 0, 1]");
  expect_stays("batch_norms_ahead", kAhead, "kernel_shape = [1, 2]", "auto_pad = \"SAME_UPPER\"");
  expect_stays("batch_norms_ahead", kAhead, "out y", "out y\nout z");
  expect_stays("batch_norms_ahead", kAhead, "const b: f32[2] = [1.0, 2.0]", "in b: f32[2]");
  expect_stays("batch_norms_ahead", kAhead, "Conv(z", "com.ms.internal.nhwc.Conv@11(z");
}

// Weights are rounded once more, and what they are multiplied by is far from its mean.
TEST(BatchNorms, OfSmallDifferencesStayAheadOfAConvolution) {
  constexpr const char* kFar = R"(in x: f16[n, 2, 3, 3]
const w: f16[2, 2, 1, 1] = [0.5, 0.5, 0.5, 0.5]
const scale: f16[2] = [1.0, 1.0]
const shift: f16[2] = [0.0, 0.0]
const mean: f16[2] = [10.0, 2.0]
const variance: f16[2] = [1.0, 1.0]
z: f16[n, 2, 3, 3] = BatchNormalization(x, scale, shift, mean, variance) {epsilon = 0.0}
y: f16[n, 2, 3, 3] = Conv(z, w) {kernel_shape = [1, 1]}
out y
)";
  EXPECT_EQ(after("batch_norms_ahead", kFar).find("BatchNormalization"), std::string::npos);
  expect_stays("batch_norms_ahead", kFar, "[10.0, 2.0]", "[200.0, 2.0]");
  expect_stays("batch_norms_ahead", kFar, "scale: f16[2] = [1.0, 1.0]", "scale: f16[2] = [60000.0, 60000.0]");
}

TEST(BatchNorms, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) {
    const std::string other = replaced(kNorm, part, by);
    EXPECT_EQ(opened(other), text_of(plan_from(other)));
  };
  stays("Relu(z)", "Softmax(z)");
  stays("out y", "out y\nout z");
  stays("const mean: f16[2] = [1.0, 2.0]", "in mean: f16[2]");
  stays("{epsilon = 1.0}", "{epsilon = 1.0, training_mode = 1}");
  stays("in x: f16[n, 2, 3, 3]", "in x: f16");
}

}  // namespace
}  // namespace encore::fuse::tests
