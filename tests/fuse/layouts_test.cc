#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// Two blocks as ConvNeXt has them: their norms want the channels last.
constexpr const char* kBlocks = R"(in x: f16[n, 8, 6, 6]
const w: f16[8, 1, 3, 3]
const g: f16[8]
const s: f16[8, 1, 1] = [1, 2, 3, 4, 5, 6, 7, 8]
a: f16[n, 8, 6, 6] = Conv(x, w) {group = 8, pads = [1, 1, 1, 1]}  # "first"
b: f16[n, 6, 6, 8] = Transpose(a) {perm = [0, 2, 3, 1]}
c: f16[n, 6, 6, 8] = LayerNormalization(b, g)
d: f16[n, 8, 6, 6] = Transpose(c) {perm = [0, 3, 1, 2]}
e: f16[n, 8, 6, 6] = Mul(d, s)
f: f16[n, 8, 6, 6] = Add(x, e)
h: f16[n, 8, 6, 6] = Conv(f, w) {group = 8, pads = [1, 1, 1, 1]}  # "second"
i: f16[n, 6, 6, 8] = Transpose(h) {perm = [0, 2, 3, 1]}
j: f16[n, 6, 6, 8] = LayerNormalization(i, g)
k: f16[n, 8, 6, 6] = Transpose(j) {perm = [0, 3, 1, 2]}
y: f16[n, 8, 6, 6] = Add(f, k)
out y
)";

std::string turned(const std::string& text) {
  Plan plan = plan_from(text);
  for (const Pass& pass : passes())
    for (const char* name : {"channels_last", "transposes", "identities"})
      if (std::string_view(pass.name) == name) run(pass, plan);
  return text_of(plan);
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Layouts, TranspositionsOfTheModelGo) {
  const std::string made = turned(kBlocks);
  EXPECT_EQ(count(made, "Transpose("), 2u) << made;  // at the ends
  EXPECT_EQ(count(made, "com.ms.internal.nhwc.Conv@"), 2u) << made;
  EXPECT_NE(made.find("f16[1, 1, 1, 8] = [1.0, 2.0"), made.npos) << made;
}

TEST(Layouts, ReductionsOfPicturesAreTurned) {
  constexpr const char* kResponses = R"(in x: f16[n, 8, 6, 6]
const w: f16[8, 8, 3, 3]
const places: i64[2] = [2, -1]
a: f16[n, 8, 4, 4] = Conv(x, w)
b: f16[n, 8, 1, 1] = ReduceL2(a, places)
y: f16[n, 8, 4, 4] = Mul(a, b)
out y
)";
  for (const char* op : {"ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceProd",
                         "ReduceSum", "ReduceSumSquare"}) {
    const std::string made = turned(replaced(kResponses, "ReduceL2", op));
    EXPECT_EQ(count(made, "Transpose("), 2u) << made;  // at the ends
    EXPECT_NE(made.find(op), made.npos);
  }
}

TEST(Layouts, OneBlockIsNotWorthIt) {
  const std::string one = replaced(replaced(kBlocks, "y: f16[n, 8, 6, 6] = Add(f, k)\n", ""), "out y", "out f");
  const std::string block = one.substr(0, one.find("h: f16")) + "out f\n";
  EXPECT_EQ(after("channels_last", block), text_of(plan_from(block)));
}

TEST(Layouts, DenseConvolutionsWantTheirChannelsLast) {
  constexpr const char* kConvolutions = R"(in x: f16[n, 8, 6, 6]
const w: f16[8, 8, 3, 3]
a: f16[n, 8, 4, 4] = Conv(x, w)
y: f16[n, 8, 4, 4] = Relu(a)
out y
)";
  EXPECT_EQ(count(turned(kConvolutions), "com.ms.internal.nhwc.Conv@"), 1u);
  // Three copies are more than one convolution gains.
  const std::string apart = replaced(kConvolutions, "y: f16[n, 8, 4, 4] = Relu(a)",
                                     "r: f16[n, 8, 4, 4] = Add(a, x)\ns: f16[n, 8, 4, 4] = Add(r, z)\ny = Relu(s)");
  EXPECT_EQ(count(turned("in z: f16[n, 8, 4, 4]\n" + apart), "com.ms.internal.nhwc.Conv@"), 0u);
}

// [tokens, channels] becomes a picture and tokens again, as in SegFormer.
TEST(Layouts, TokensArePicturesWithTheirChannelsLast) {
  const std::string made = turned(R"(in x: f16[n, 36, 8]
const w: f16[8, 1, 3, 3]
const picture: i64[4] = [0, 8, 6, 6]
const tokens: i64[3] = [0, 8, 36]
a: f16[n, 8, 36] = Transpose(x) {perm = [0, 2, 1]}
b: f16[n, 8, 6, 6] = Reshape(a, picture)
c: f16[n, 8, 6, 6] = Conv(b, w) {group = 8, pads = [1, 1, 1, 1]}
d: f16[n, 8, 36] = Reshape(c, tokens)
y: f16[n, 36, 8] = Transpose(d) {perm = [0, 2, 1]}
out y
)");
  EXPECT_EQ(count(made, "com.ms.internal.nhwc.Conv@"), 1u) << made;
  EXPECT_EQ(count(after("movements", made), "encore.View("), 2u) << after("movements", made);
}

// As wav2vec 2.0 begins.
constexpr const char* kLines = R"(in x: f16[n, 8, 60]
const w: f16[8, 8, 3]
const b: f16[8, 1] = [1, 2, 3, 4, 5, 6, 7, 8]
a: f16[n, 8, 29] = Conv(x, w) {strides = [2]}
c: f16[n, 8, 29] = Add(a, b)
d: f16[n, 8, 14] = Conv(c, w) {strides = [2]}
e: f16[n, 8, 14] = Gelu(d)
y: f16[n, 14, 8] = Transpose(e) {perm = [0, 2, 1]}
out y
)";

TEST(Layouts, LinesHaveTheirChannelsLastToo) {
  const std::string made = turned(kLines);
  EXPECT_EQ(count(made, "Transpose("), 1u) << made;  // at the beginning
  EXPECT_EQ(count(made, "com.ms.internal.nhwc.Conv@"), 2u) << made;
  EXPECT_NE(made.find("f16[1, 1, 8] = [1.0, 2.0"), made.npos) << made;
  EXPECT_NE(made.find("f16[n, 29, 8] = Add("), made.npos) << made;
}

TEST(Layouts, LinesAndPicturesAreNotTurnedTogether) {
  const std::string sum = replaced(kLines, "Gelu(d)", "Gelu(d)\nf: f16[n, n, 8, 14] = Add(d, z)");
  const std::string made = turned("in z: f16[n, 1, 8, 14]\n" + sum + "out f\n");
  EXPECT_EQ(count(made, "com.ms.internal.nhwc.Conv@"), 2u) << made;
  EXPECT_NE(made.find("f: f16[n, n, 8, 14] = Add(d~2, z)"), made.npos) << made;
}

TEST(Layouts, WhatHasBothInOnePlaceIsSeenAnotherWay) {
  const std::string made = turned(R"(in x: f16[n, 8, 1, 1]
const w: f16[8, 8, 1, 1]
y: f16[n, 8, 1, 1] = Conv(x, w)
out y
)");
  EXPECT_EQ(count(made, "Transpose("), 0u) << made;
  EXPECT_EQ(count(made, "view "), 2u) << made;
}

}  // namespace
}  // namespace encore::fuse::tests
