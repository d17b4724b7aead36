#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// As exporters write it: heads of rows, a scale, a mask, and rows of heads.
constexpr const char* kSpelled = R"(in q: f16[b, n, 64]
in k: f16[b, m, 64]
in v: f16[b, m, 64]
in mask: f16[b, 1, 1, m]
const heads: i64[4] = [0, 0, 4, 16]
const eight: f16[] = 4.0
q4: f16[b, n, 4, 16] = Reshape(q, heads)
qh: f16[b, 4, n, 16] = Transpose(q4) {perm = [0, 2, 1, 3]}
k4: f16[b, m, 4, 16] = Reshape(k, heads)
kh: f16[b, 4, 16, m] = Transpose(k4) {perm = [0, 2, 3, 1]}
v4: f16[b, m, 4, 16] = Reshape(v, heads)
vh: f16[b, 4, m, 16] = Transpose(v4) {perm = [0, 2, 1, 3]}
product: f16[b, 4, n, m] = MatMul(qh, kh)
scaled: f16[b, 4, n, m] = Div(product, eight)
masked: f16[b, 4, n, m] = Add(scaled, mask)
p: f16[b, 4, n, m] = Softmax(masked) {axis = -1}
h: f16[b, 4, n, 16] = MatMul(p, vh)
y: f16[b, n, 4, 16] = Transpose(h) {perm = [0, 2, 1, 3]}
out y
)";

TEST(Attention, TakesAlongWhatOnlyMoves) {
  EXPECT_EQ(after("attention", kSpelled), R"(in q: f16[b, n, 64]
in k: f16[b, m, 64]
in v: f16[b, m, 64]
in mask: f16[b, 1, 1, m]
y: f16[b, n, 4, 16] = encore.Attention(q, k, v, mask) {k = "reshape 0,0,4,16; transpose 0,2,3,1; transpose 0,1,3,2", q = "reshape 0,0,4,16; transpose 0,2,1,3", scale = 0.25, v = "reshape 0,0,4,16; transpose 0,2,1,3", y = [0, 2, 1, 3]}  # "y"
out y
)");
}

// Each head of keys and values is there for two of queries.
constexpr const char* kGroups = R"(in q: f16[b, 4, n, 16]
in k: f16[b, 2, m, 16]
in v: f16[b, 2, m, 16]
const two: i64[1] = [2]
const apart: i64[5] = [1, 1, 2, 1, 1]
const joint: i64[4] = [0, 4, -1, 16]
k5: f16[b, 2, 1, m, 16] = Unsqueeze(k, two)
ke: f16[b, 2, 2, m, 16] = Expand(k5, apart)
kr: f16[b, 4, m, 16] = Reshape(ke, joint)
kt: f16[b, 4, 16, m] = Transpose(kr) {perm = [0, 1, 3, 2]}
v5: f16[b, 2, 1, m, 16] = Unsqueeze(v, two)
ve: f16[b, 2, 2, m, 16] = Tile(v5, apart)
vr: f16[b, 4, m, 16] = Reshape(ve, joint)
product: f16[b, 4, n, m] = MatMul(q, kt)
p: f16[b, 4, n, m] = Softmax(product) {axis = -1}
y: f16[b, 4, n, 16] = MatMul(p, vr)
out y
)";

TEST(Attention, OfGroups) {
  EXPECT_EQ(after("attention", kGroups), R"(in q: f16[b, 4, n, 16]
in k: f16[b, 2, m, 16]
in v: f16[b, 2, m, 16]
y: f16[b, 4, n, 16] = encore.Attention(q, k, v, _) {k = "unsqueeze 2; repeat 2,2; reshape 0,4,-1,16; transpose 0,1,3,2; transpose 0,1,3,2", q = "", scale = 1.0, v = "unsqueeze 2; repeat 2,2; reshape 0,4,-1,16", y = [0, 1, 2, 3]}  # "y"
out y
)");
  const auto reads = [](const char* part, const char* by, const char* inputs) {
    const std::string made = after("attention", replaced(kGroups, part, by));
    EXPECT_NE(made.find(inputs), made.npos) << made;
  };
  reads("out y", "out y\nout ke", "encore.Attention(q, ke, v, _)");
  reads("[1, 1, 2, 1, 1]", "[1, 1, 2, 2, 1]", "encore.Attention(q, ke, ve, _)");
}

// As torch asks for it: the shape is made of the tensor's own, and a zero would be one.
TEST(Attention, OfGroupsWithComputedShapes) {
  std::string text = replaced(kGroups, "const apart: i64[5] = [1, 1, 2, 1, 1]\n",
                              "const first: i64[1] = [0]\nconst third: i64[1] = [3]\nconst size: i64[1] = [16]\n"
                              "const four: i64[1] = [4]\nconst fifth: i64[1] = [4]\n"
                              "s: i64[4] = Shape(k)\nbatch: i64[1] = Slice@13(s, first, one, first)\n"
                              "rows: i64[1] = Slice@13(s, two, third, first)\n"
                              "apart: i64[5] = Concat(batch, two, two, rows, size) {axis = 0}\n");
  text = replaced(text, "const two", "const one: i64[1] = [1]\nconst two");
  text = replaced(text, "const joint: i64[4] = [0, 4, -1, 16]",
                  "joint: i64[4] = Concat(batch, four, rows, size) {axis = 0}");
  text = replaced(text, "Tile(v5", "Expand(v5");
  for (int i = 0; i < 2; ++i) text = replaced(text, ", joint)\n", ", joint) {allowzero = 1}\n");
  const std::string made = after("attention", text);
  EXPECT_NE(made.find("encore.Attention(q, k, v, _) {k = \"unsqueeze 2; repeat 2,2; reshape 0,4,-1,16; "), made.npos)
      << made;
  EXPECT_NE(made.find("v = \"unsqueeze 2; repeat 2,2; reshape 0,4,-1,16\""), made.npos) << made;
  EXPECT_EQ(made.find("Shape("), made.npos) << made;
}

// What is added is known to be finite where the steps that make it tell.
TEST(Attention, KnowsTheLeastThatAMaskAdds) {
  const auto least = [](const std::string& mask) {
    const std::string made = after("attention", replaced(kSpelled, "in mask: f16[b, 1, 1, m]\n", mask));
    EXPECT_NE(made.find("encore.Attention(q, k, v, mask)"), made.npos) << made;
    const size_t at = made.find("least = ");
    return at == made.npos ? "" : made.substr(at + 8, made.find(',', at) - at - 8);
  };
  EXPECT_EQ(least("const mask: f16[2, 1] = [-3, 4]\n"), "-3.0");
  EXPECT_EQ(least("const mask: f16[2, 1] = [0, -inf]\n"), "");
  EXPECT_EQ(least("const mask: f16[2, 1] = [0, nan]\n"), "");
  const auto sees = [](const std::string& mask) {
    return after("attention", replaced(kSpelled, "in mask: f16[b, 1, 1, m]\n", mask)).find("sees = 1") != mask.npos;
  };
  EXPECT_TRUE(sees("const mask: f16[2, 2] = [0, -inf, 0, 0]\n"));
  EXPECT_FALSE(sees("const mask: f16[2, 2] = [0, 0, -inf, -inf]\n"));
  EXPECT_FALSE(sees("const mask: f16[2, 1] = [0, -inf]\n"));
  EXPECT_EQ(least("const mask: f16[1, 1, 1, m]\n"), "");
  const std::string numbers = "in seen: bool[b, 1, 1, m]\nconst zero: f16[] = 0.0\nconst one: f16[] = 1.0\n";
  EXPECT_EQ(least(numbers + "const low: f16[] = -65504.0\nmask: f16[b, 1, 1, m] = Where(seen, zero, low)\n"),
            "-65504.0");
  EXPECT_EQ(least(numbers + "const low: f16[] = -inf\nmask: f16[b, 1, 1, m] = Where(seen, zero, low)\n"), "");
  const std::string cast =
      "number: f16[b, 1, 1, m] = Cast(seen) {to = 10}\nunseen: f16[b, 1, 1, m] = Sub(one, number)\n";
  const auto times = [&](const char* factor) {
    return "const low: f16[] = " + std::string(factor) + "\n" + cast + "mask: f16[b, 1, 1, m] = Mul(unseen, low)\n";
  };
  EXPECT_EQ(least(numbers + times("-10000.0")), "-10000.0");
  EXPECT_EQ(least(replaced(numbers, "bool", "i64") + times("-10000.0")), "");
  EXPECT_EQ(least(replaced(numbers, "one: f16[] = 1.0", "one: f16[] = 8.0") + times("-10000.0")), "");  // beyond f16
}

std::string in_floats(std::string text) {
  for (size_t at = 0; (at = text.find("f16", at)) != text.npos;) text.replace(at, 3, "f32");
  return text;
}

TEST(Attention, OfFloatsInRegions) {
  const std::string text = in_floats(kSpelled);
  EXPECT_EQ(after("attention", text), in_floats(after("attention", kSpelled)));
  Plan group = plan_from(text);
  group.is_group = true;
  rewrite(group, {});
  EXPECT_EQ(text_of(group).find("encore.Attention"), std::string::npos) << text_of(group);
}

// Zeros in the place of NaN are the softmax's, if it adds a mask.
TEST(Attention, OfFloatsWithZerosForNaN) {
  const std::string text =
      replaced(replaced(in_floats(kSpelled), "MatMul(p, vh)", "MatMul(filled, vh)"), "\nh: f32[b, 4, n, 16]",
               "\nnan: bool[b, 4, n, m] = IsNaN(p)\n"
               "filled: f32[b, 4, n, m] = Where(nan, zero, p)\nh: f32[b, 4, n, 16]");
  const std::string with_zero = replaced(text, "const eight", "const zero: f32[] = 0.0\nconst eight");
  EXPECT_NE(after("attention", with_zero).find("zeros = 1}"), std::string::npos) << after("attention", with_zero);
  const std::string plain = replaced(replaced(with_zero, "masked: f32[b, 4, n, m] = Add(scaled, mask)\n", ""),
                                     "Softmax(masked)", "Softmax(scaled)");
  EXPECT_EQ(after("attention", plain), text_of(plan_from(plain)));
}

TEST(Attention, WhatOthersReadStaysOutside) {
  const std::string made = after("attention", replaced(kSpelled, "out y", "out y\nout v4"));
  EXPECT_NE(made.find("encore.Attention(q, k, v4, mask)"), made.npos) << made;
  EXPECT_NE(made.find("v = \"transpose 0,2,1,3\""), made.npos) << made;
}

// The shape that is asked for is the one that there is.
constexpr const char* kComputedShape = R"(s: i64[3] = Shape(q)
heads: i64[2] = Slice(s, zero, two, zero, one)
shape: i64[4] = Concat(heads, size) {axis = 0}
q4: f16[b, n, 4, 16] = Reshape(q, shape))";

std::string with_computed_shape() {
  return replaced(replaced(kSpelled, "q4: f16[b, n, 4, 16] = Reshape(q, heads)", kComputedShape), "const eight",
                  "const zero: i64[1] = [0]\nconst one: i64[1] = [1]\nconst two: i64[1] = [2]\n"
                  "const size: i64[2] = [4, 16]\nconst eight");
}

TEST(Attention, ShapesThatAreComputedComeAlong) {
  const std::string text = replaced(with_computed_shape(), "heads: i64[2]", "first: i64[2]");
  const std::string made = after("attention", replaced(text, "Concat(heads,", "Concat(first,"));
  EXPECT_EQ(made, after("attention", kSpelled));
}

TEST(Attention, OnlyItsOwnShapesDo) {
  std::string text = replaced(with_computed_shape(), "heads: i64[2]", "first: i64[2]");
  text = replaced(replaced(text, "Concat(heads,", "Concat(first,"), "out y", "out y\nout shape");
  EXPECT_NE(after("attention", text).find("encore.Attention(q, k, v, mask)"), std::string::npos);
  Plan plan = plan_from(text);
  plan.is_group = true;
  rewrite(plan, {});
  EXPECT_NE(text_of(plan).find("encore.Attention(q4, k, v, mask)"), std::string::npos) << text_of(plan);
}

TEST(Attention, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("attention", kSpelled, part, by); };
  stays("{axis = -1}", "{axis = 2}");
  stays("Softmax(masked) {axis = -1}", "Softmax@11(masked)");  // along all but the first
  stays("masked: f16", "masked: f32");
  stays("mask: f16", "mask: f32");
  stays("mask: f16[b, 1, 1, m]", "mask: f16");
  stays("eight: f16[] = 4.0", "eight: f16[] = -4.0");
  stays("out y", "out y\nout p");
  stays("out y", "out y\nout scaled");
  stays("MatMul(p, vh)", "MatMul(vh, p)");
  stays("p: f16", "elsewhere p: f16");
  stays("\nh: f16", "\nelsewhere h: f16");
  stays("vh: f16[b, 4, m, 16]", "vh: f16[b, 4, m, 12]");
}

// The batch of Swin's shifted windows is images and windows while their mask is added.
constexpr const char* kWindows = R"(in q: f16[b, 3, 49, 16]
in k: f16[b, 3, 16, 49]
in v: f16[b, 3, 49, 16]
const bias: f16[1, 3, 49, 49]
const mask: f16[1, 4, 1, 49, 49]
const apart: i64[5] = [-1, 4, 3, 49, 49]
const joint: i64[4] = [-1, 3, 49, 49]
product: f16[b, 3, 49, 49] = MatMul(q, k)
biased: f16[b, 3, 49, 49] = Add(product, bias)
windows: f16[n, 4, 3, 49, 49] = Reshape(biased, apart)
masked: f16[n, 4, 3, 49, 49] = Add(windows, mask)
scores: f16[c, 3, 49, 49] = Reshape(masked, joint)
p: f16[c, 3, 49, 49] = Softmax(scores) {axis = -1}
y: f16[c, 3, 49, 16] = MatMul(p, v)
out y
)";

TEST(Attention, MasksOfWindows) {
  const std::string made = after("attention", kWindows);
  EXPECT_NE(made.find("\"mask and bias\": f16 = Add(mask, bias)"), made.npos) << made;
  EXPECT_NE(made.find("y: f16[c, 3, 49, 16] = encore.Attention(q, k, v, \"mask and bias\")"), made.npos) << made;
  const std::string alone =
      after("attention", replaced(replaced(kWindows, "biased: f16[b, 3, 49, 49] = Add(product, bias)\n", ""),
                                  "Reshape(biased, apart)", "Reshape(product, apart)"));
  EXPECT_NE(alone.find("encore.Attention(q, k, v, mask)"), alone.npos) << alone;
  const std::string known =
      replaced(replaced(kWindows, "mask: f16[1, 4, 1, 49, 49]", "mask: f16[1, 4, 1, 1, 1] = [0, -2, -9, 1]"),
               "bias: f16[1, 3, 49, 49]", "bias: f16[1, 3, 1, 1] = [-1, 4, 8]");
  EXPECT_NE(after("attention", known).find("least = -10.0"), known.npos) << after("attention", known);
  const auto stays = [](const char* part, const char* by) {
    const std::string other = after("attention", replaced(kWindows, part, by));
    EXPECT_NE(other.find("= Softmax(scores)"), other.npos) << other;
  };
  stays("const mask: f16[1, 4, 1, 49, 49]", "in mask: f16[n, 4, 1, 49, 49]");
  stays("const bias: f16[1, 3, 49, 49]", "in bias: f16[b, 3, 49, 49]");
  stays("out y", "out y\nout masked");
  stays("out y", "out y\nout windows");
}

TEST(Attention, OfFiveDimensionsWhoseFirstTwoAreTheBatch) {
  constexpr const char* kGrid = R"(in q: f16[n, 4, 3, 49, 16]
in k: f16[n, 4, 3, 16, 49]
in v: f16[n, 4, 3, 49, 16]
s: f16[n, 4, 3, 49, 49] = MatMul(q, k)
p: f16[n, 4, 3, 49, 49] = Softmax(s) {axis = -1}
h: f16[n, 4, 3, 49, 16] = MatMul(p, v)
y: f16[n, 4, 49, 3, 16] = Transpose(h) {perm = [0, 1, 3, 2, 4]}
out y
)";
  const std::string made = after("attention", kGrid);
  EXPECT_NE(made.find("\"y of all windows\": f16 = encore.Attention(q, k, v, _)"), made.npos) << made;
  EXPECT_NE(made.find("q = \"reshape -1,3,49,16\""), made.npos) << made;
  EXPECT_NE(made.find("k = \"transpose 0,1,2,4,3; reshape -1,3,49,16\""), made.npos) << made;
  EXPECT_NE(made.find("y = [0, 2, 1, 3]"), made.npos) << made;
  EXPECT_NE(made.find("y: f16[n, 4, 49, 3, 16] = encore.View(\"y of all windows\") {steps = \"reshape -1,4,49,3,16\"}"),
            made.npos)
      << made;
  expect_stays("attention", kGrid, "in q: f16[n, 4, 3,", "in q: f16[m, 4, 3,");
  const auto masked = [&](const char* mask) {
    return replaced(replaced(kGrid, "s: f16", std::string("in mask: f16[") + mask + "]\ns: f16"),
                    "p: f16[n, 4, 3, 49, 49] = Softmax(s)",
                    "t: f16[n, 4, 3, 49, 49] = Add(s, mask)\np: f16[n, 4, 3, 49, 49] = Softmax(t)");
  };
  for (const char* mask : {"3, 49, 49", "1, 1, 49, 49", "1, 4, 1, 49, 49", "n, 4, 1, 49, 49"})
    EXPECT_NE(after("attention", masked(mask)).find("encore.Attention"), std::string::npos) << mask;
  // Of the first two dimensions alone, which are a batch together.
  for (const char* mask : {"4, 1, 49, 49", "n, 1, 1, 49, 49"}) {
    const std::string other = masked(mask);
    EXPECT_EQ(after("attention", other), text_of(plan_from(other))) << mask;
    EXPECT_EQ(
        notes_of("attention", replaced(other, "= Softmax(t) {axis = -1}", "= Softmax(t) {axis = -1}  # \"attend\"")),
        Notes{"Softmax node 'attend' does not become an attention: its five dimensions are not of windows of known "
              "sizes, with masks for images or windows"});
  }
}

// Of pictures with their channels first, as YOLO has it: values come from the left.
constexpr const char* kOfChannels = R"(in q: f16[b, 4, 16, 49]
in k: f16[b, 4, 16, 49]
in v: f16[b, 4, 16, 49]
qt: f16[b, 4, 49, 16] = Transpose(q) {perm = [0, 1, 3, 2]}
product: f16[b, 4, 49, 49] = MatMul(qt, k)
p: f16[b, 4, 49, 49] = Softmax(product) {axis = -1}
pt: f16[b, 4, 49, 49] = Transpose(p) {perm = [0, 1, 3, 2]}
y: f16[b, 4, 16, 49] = MatMul(v, pt)
out y
)";
constexpr const char* kRowsOfChannels = R"(in q: f16[b, 4, 16, 49]
in k: f16[b, 4, 16, 49]
in v: f16[b, 4, 16, 49]
"y by rows": f16[b, 49, 4, 16] = encore.Attention(q, k, v, _) {k = "transpose 0,1,3,2", q = "transpose 0,1,3,2", scale = 1.0, v = "transpose 0,1,3,2", y = [0, 2, 1, 3]}  # "y"
y: f16[b, 4, 16, 49] = Transpose("y by rows") {perm = [0, 2, 3, 1]}  # "y"
out y
)";

TEST(Attention, OfChannelsBeforeRows) {
  EXPECT_EQ(after("attention", kOfChannels), kRowsOfChannels);
  // Or values are turned, as CoAtNet has it, and what is made.
  const std::string behind =
      replaced(replaced(kOfChannels, "pt: f16[b, 4, 49, 49] = Transpose(p)", "vt: f16[b, 4, 49, 16] = Transpose(v)"),
               "y: f16[b, 4, 16, 49] = MatMul(v, pt)",
               "h: f16[b, 4, 49, 16] = MatMul(p, vt)\ny: f16[b, 4, 16, 49] = Transpose(h) {perm = "
               "[0, 1, 3, 2]}");
  EXPECT_EQ(after("attention", behind), kRowsOfChannels);
  const auto stays = [](const char* part, const char* by) { expect_stays("attention", kOfChannels, part, by); };
  stays("out y", "out y\nout pt");
  stays("Transpose(p) {perm = [0, 1, 3, 2]}", "Transpose(p) {perm = [0, 2, 1, 3]}");
}

TEST(Attention, SaysWhyItStays) {
  const std::string spelled = replaced(kSpelled, "{axis = -1}", "{axis = -1}  # \"attend\"");
  EXPECT_EQ(
      notes_of("attention", replaced(spelled, "in mask: f16[b, 1, 1, m]", "in mask: f16")),
      Notes{"Softmax node 'attend' does not become an attention: its mask has another type, or its dimensions are "
            "not known"});
  EXPECT_EQ(
      notes_of("attention", replaced(spelled, "vh: f16[b, 4, m, 16]", "vh: f16[b, 4, m, 12]")),
      Notes{"Softmax node 'attend' does not become an attention: there are no fast kernels for heads of this size"});
  EXPECT_EQ(notes_of("attention", kSpelled), Notes{});
  EXPECT_EQ(notes_of("attention", replaced(kSpelled, "out y", "out y\nout p")), Notes{});
}

}  // namespace
}  // namespace encore::fuse::tests
