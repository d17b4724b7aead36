#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

std::string casts(const std::string& narrow, const std::string& wide, const std::string& last) {
  return "in x: " + narrow + "[n]\na: " + wide + "[n] = Cast(x)\ny: " + last + "[n] = Cast(a)\nz = Relu(y)\nout z\n";
}

TEST(Casts, ToAWiderTypeAndBackAreNone) {
  EXPECT_EQ(after("casts", casts("f16", "f32", "f16")), "in x: f16[n]\ny: f16[n] = Identity(x)\nz = Relu(y)\nout z\n");
  for (const auto& [narrow, wide] :
       {std::pair("bf16", "f32"), {"f32", "f64"}, {"u8", "i16"}, {"i32", "i64"}, {"i32", "f64"}})
    EXPECT_NE(after("casts", casts(narrow, wide, narrow)).find("Identity"), std::string::npos) << narrow << wide;
}

TEST(Casts, OthersStay) {
  for (const auto& [narrow, wide] : {std::pair("f32", "f16"),
                                     {"bf16", "f16"},
                                     {"f16", "bf16"},
                                     {"i32", "f32"},
                                     {"i8", "u8"},
                                     {"i64", "f64"},
                                     {"bool", "f32"}})
    EXPECT_EQ(after("casts", casts(narrow, wide, narrow)), casts(narrow, wide, narrow));
  EXPECT_EQ(after("casts", casts("f16", "f32", "bf16")), casts("f16", "f32", "bf16"));
}

TEST(Casts, WhatOthersReadIsStillMade) {
  EXPECT_NE(after("casts", casts("f16", "f32", "f16") + "out a\n").find("a: f32[n] = Cast(x)"), std::string::npos);
}

constexpr const char* kTurns = R"(in x: f32[a, b, c]
t = Transpose(x) {perm = [1, 2, 0]}
y = Transpose(t) {perm = [1, 2, 0]}
out y
)";

TEST(Casts, AreNotWantedToAskForInfinity) {
  constexpr const char* kAsked = R"(in x: f16[n]
w: f64[n] = Cast(x) {to = 11}
y: bool[n] = IsInf@10(w) {detect_negative = 0, detect_positive = 1}
out y
)";
  EXPECT_EQ(after("casts", kAsked), R"(in x: f16[n]
y: bool[n] = IsInf(x) {detect_negative = 0, detect_positive = 1}
out y
)");
  EXPECT_NE(after("casts", replaced(kAsked, "IsInf@10(w) {detect_negative = 0, detect_positive = 1}", "IsNaN(w)"))
                .find("IsNaN(x)"),
            std::string::npos);
  expect_stays("casts", kAsked, "in x: f16[n]", "in x: i32[n]");
  expect_stays("casts", replaced(kAsked, "f64[n] = Cast(x) {to = 11}", "f16[n] = Cast(x) {to = 10}"), "in x: f16[n]",
               "in x: f32[n]");
}

TEST(Transposes, TwoAreOne) {
  EXPECT_EQ(after("transposes", kTurns), "in x: f32[a, b, c]\ny = Transpose(x) {perm = [2, 0, 1]}\nout y\n");
}
TEST(Transposes, OrNone) {
  EXPECT_EQ(after("transposes", replaced(kTurns, "(t) {perm = [1, 2, 0]", "(t) {perm = [2, 0, 1]")),
            "in x: f32[a, b, c]\ny = Identity(x)\nout y\n");
}
TEST(Transposes, StayWhereOrdersAreUnknown) {
  expect_stays("transposes", kTurns, " {perm = [1, 2, 0]}\nout", "\nout");
  expect_stays("transposes", kTurns, "t = Tr", "elsewhere t = Tr");
}

TEST(Identities, AreReadThrough) {
  EXPECT_EQ(after("identities", "in x\ni = Identity(x)\ny = Add(i, i)\nout y\n"), "in x\ny = Add(x, x)\nout y\n");
}
TEST(Identities, AConcatOfOneAlongItsAxesIsRead) {
  constexpr const char* kJoined = "in x: f32[n, m]\ni: f32[n, m] = Concat(x) {axis = -2}\ny = Add(i, i)\nout y\n";
  EXPECT_EQ(after("identities", kJoined), "in x: f32[n, m]\ny = Add(x, x)\nout y\n");
  expect_stays("identities", kJoined, "-2", "2");  // which the node refuses
  expect_stays("identities", kJoined, "f32[n, m]\ni", "f32\ni");
}
TEST(Identities, StayWhereTheyAreOutputs) {
  expect_stays("identities", "in x\ni = Identity(x)\ny = Add(i, x)\nout y\n", "out y", "out y\nout i");
}

// What models cut padding off with, though there is none.
constexpr const char* kWhole = R"(in x: f16[n, 6, 4]
const begins: i64[2] = [0, 0]
const ends: i64[2] = [9223372036854775807, 6]
const axes: i64[2] = [0, 1]
a: f16[n, 6, 4] = Slice@13(x, begins, ends, axes)
y: f16[n, 6, 4] = Relu(a)
out y
)";

TEST(Identities, AreSlicesOfAll) {
  const std::string made = after("identities", kWhole);
  EXPECT_NE(made.find("Relu(x)"), made.npos) << made;
  EXPECT_EQ(made.find("Slice"), made.npos) << made;
}
TEST(Identities, AreNoSlicesOfAPart) {
  const auto stays = [](const char* part, const char* by) { expect_stays("identities", kWhole, part, by); };
  stays("begins: i64[2] = [0, 0]", "begins: i64[2] = [1, 0]");
  stays("9223372036854775807, 6]", "9223372036854775807, 5]");
  stays("9223372036854775807, 6]", "4, 6]");
  stays("9223372036854775807, 6]", "9223372036854775807, -1]");
  stays("ends: i64[2] = [9223372036854775807, 6]", "ends: i64[1] = [9223372036854775807]");
  stays("const axes: i64[2] = [0, 1]", "in axes: i64[2]");
  stays("ends, axes)", "ends, axes, axes)");
  stays("out y", "out y\nout a");
}

constexpr const char* kPadded = R"(in x: f16[n, 4]
const pads: i64[4] = [0, 0, 0, 0]
a: f16[n, 4] = Pad(x, pads)
y: f16[n, 4] = Relu(a)
out y
)";

TEST(Identities, ArePadsByNothing) {
  EXPECT_EQ(after("identities", kPadded), "in x: f16[n, 4]\ny: f16[n, 4] = Relu(x)\nout y\n");
  const std::string early = replaced(kPadded, "Pad(x, pads)", "Pad@2(x) {pads = [0, 0, 0, 0]}");
  EXPECT_NE(after("identities", early).find("Relu(x)"), early.npos);
  expect_stays("identities", early, "0, 0, 0, 0]}", "0, 0, 0, 1]}");
  expect_stays("identities", kPadded, "[0, 0, 0, 0]", "[0, 0, 0, -1]");
  expect_stays("identities", kPadded, "const pads: i64[4] = [0, 0, 0, 0]", "in pads: i64[4]");
  expect_stays("identities", kPadded, "out y", "out y\nout a");
}

TEST(Identities, AreReshapesToTheSameDimensions) {
  constexpr const char* kShaped = R"(in x: f16[n, 6, 4]
const shape: i64[3] = [-1, 6, 4]
a: f16[n, 6, 4] = Reshape(x, shape)
y: f16[n, 6, 4] = Relu(a)
out y
)";
  for (const char* pass : {"identities", "unmoved"})
    EXPECT_EQ(after(pass, kShaped), "in x: f16[n, 6, 4]\ny: f16[n, 6, 4] = Relu(x)\nout y\n");
  expect_stays("identities", kShaped, "in x: f16[n, 6, 4]", "in x: f16[n, 4, 6]");
  expect_stays("identities", kShaped, "in x: f16[n, 6, 4]", "in x: f16[m, 6, 4]");
}

constexpr const char* kSameSize = R"(in x: f16[n, 6, 4]
const sizes: i64[2] = [4, 6]
const ones: f32[3] = [1.0, 1.0, 1.0]
a: f16[n, 6, 4] = Resize@19(x, _, _, sizes) {axes = [2, 1], mode = "linear"}
y: f16[n, 6, 4] = Relu(a)
out y
)";

TEST(Identities, AreResizesToTheSameSize) {
  const auto goes = [](const char* part, const char* by) {
    const std::string made = after("identities", replaced(kSameSize, part, by));
    EXPECT_NE(made.find("Relu(x)"), made.npos) << made;
  };
  goes("x, _, _, sizes", "x, _, _, sizes");
  goes("x, _, _, sizes) {axes = [2, 1], ", "x, _, ones) {");
  goes("Resize@19(x, _, _, sizes) {axes = [2, 1], ", "Upsample@9(x, ones) {");
}
TEST(Identities, AreNoResizesToOtherSizes) {
  const auto stays = [](const char* part, const char* by) { expect_stays("identities", kSameSize, part, by); };
  stays("[2, 1]", "[1, 2]");
  stays("[2, 1]", "[2, 0]");
  stays("axes = [2, 1], ", "");
  stays("\"linear\"", "\"linear\", coordinate_transformation_mode = \"tf_crop_and_resize\"");
  stays("const sizes: i64[2] = [4, 6]", "in sizes: i64[2]");
  expect_stays("identities", replaced(kSameSize, "x, _, _, sizes) {axes = [2, 1], ", "x, _, ones) {"), "[1.0, 1.0",
               "[1.0, 1.01");
  stays("out y", "out y\nout a");
}

constexpr const char* kTwice = "in x\nin z\na = Add(x, z)\nb = Add(x, z)\ny = Mul(a, b)\nout y\n";

TEST(Same, IsComputedOnce) { EXPECT_EQ(after("same", kTwice), "in x\nin z\na = Add(x, z)\ny = Mul(a, a)\nout y\n"); }
TEST(Same, OtherwiseNot) {
  const auto stays = [](const char* part, const char* by) { expect_stays("same", kTwice, part, by); };
  stays("b = Add(x, z)", "b = Add(z, x)");
  stays("b = Add(x, z)", "b = Sub(x, z)");
  stays("b = Add(x, z)", "b = Add@7(x, z)");
  stays("b = Add(x, z)", "b = Add(x, z) {axis = 1}");
  stays("b = Add(x, z)", "host b = Add(x, z)");
  stays("out y", "out y\nout b");
  expect_stays("same", replaced(replaced(kTwice, "Add(", "Dropout("), "Add(", "Dropout("), "y = ", "y = ");
  expect_stays("same",
               replaced(replaced(kTwice, "z)", "z) {value = ...}"), "b = Add(x, z)", "b = Add(x, z) {value = ...}"),
               "y = ", "y = ");
}

TEST(Unread, IsLeftOut) {
  EXPECT_EQ(after("unread", "in x\na = Relu(x)\nhost b = Shape(a)\nc, _ = Split(x, b)\ny = Exp(x)\nout y\n"),
            "in x\ny = Exp(x)\nout y\n");
}

TEST(Unread, OthersStay) {
  constexpr const char* kRead = "in x\na, b = Split(x)\ny = Exp(a)\nout y\nout b\n";
  EXPECT_EQ(after("unread", kRead), kRead);
  EXPECT_EQ(after("unread", replaced(kRead, "out b\n", "")), "in x\na, _ = Split(x)\ny = Exp(a)\nout y\n");
}

}  // namespace
}  // namespace encore::fuse::tests
