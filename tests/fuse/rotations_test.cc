#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// As torch's exporters write it.
constexpr const char* kSpelled = R"(in x: f16[b, n, 64]
in cos: f16[1, 1, n, 16]
in sin: f16[1, 1, n, 16]
const heads: i64[4] = [0, 0, 4, 16]
const zero: i64[1] = [0]
const half: i64[1] = [8]
const end: i64[1] = [9223372036854775807]
const last: i64[1] = [3]
const gamma: f16[16]
rows: f16[b, n, 4, 16] = Reshape(x, heads)
normed: f16[b, n, 4, 16] = RMSNormalization(rows, gamma) {epsilon = 0.5}
h: f16[b, 4, n, 16] = Transpose(normed) {perm = [0, 2, 1, 3]}
plain: f16[b, 4, n, 16] = Mul(h, cos)
low: f16[b, 4, n, 8] = Slice@13(h, zero, half, last)
high: f16[b, 4, n, 8] = Slice@13(h, half, end, last)
negative: f16[b, 4, n, 8] = Neg(high)
turned: f16[b, 4, n, 16] = Concat(negative, low) {axis = -1}
by_sin: f16[b, 4, n, 16] = Mul(turned, sin)
y: f16[b, 4, n, 16] = Add(plain, by_sin)  # "rotated"
out y
)";

constexpr const char* kOutline = R"(in x: f16[b, n, 64]
in cos: f16[1, 1, n, 16]
in sin: f16[1, 1, n, 16]
const gamma: f16[16]
"y before it is turned": f16[b, n, 4, 16] = encore.Rotation(x, cos, sin, gamma) {epsilon = 0.5, x = "reshape 0,0,4,16; transpose 0,2,1,3", y = [0, 2, 1, 3]}  # "rotated"
y: f16[b, 4, n, 16] = Transpose("y before it is turned") {perm = [0, 2, 1, 3]}  # "rotated"
out y
)";

TEST(Rotations, HeadsAreWrittenAsTheyWere) {
  EXPECT_EQ(after("rotations", kSpelled), kOutline);
  EXPECT_EQ(after("rotations", replaced(replaced(kSpelled, "Mul(h, cos)", "Mul(cos, h)"), "Add(plain, by_sin)",
                                        "Add(by_sin, plain)")),
            kOutline);
  std::string split = replaced(kSpelled, "low: f16[b, 4, n, 8] = Slice@13(h, zero, half, last)\n",
                               "low: f16[b, 4, n, 8], high: f16[b, 4, n, 8] = Split@13(h, _) {axis = -1}\n");
  split = replaced(split, "high: f16[b, 4, n, 8] = Slice@13(h, half, end, last)\n", "");
  EXPECT_EQ(after("rotations", split), kOutline);
}

TEST(Rotations, OfHeadsThatAreNotTurned) {
  std::string text = replaced(kSpelled, "rows: f16[b, n, 4, 16] = Reshape(x, heads)\n", "");
  text = replaced(text, "normed: f16[b, n, 4, 16] = RMSNormalization(rows, gamma) {epsilon = 0.5}\n", "");
  text = replaced(text, "h: f16[b, 4, n, 16] = Transpose(normed) {perm = [0, 2, 1, 3]}\n", "");
  const std::string made = after("rotations", replaced(text, "in x: f16[b, n, 64]\n", "in h: f16[b, 4, n, 16]\n"));
  EXPECT_EQ(made, R"(in h: f16[b, 4, n, 16]
in cos: f16[1, 1, n, 16]
in sin: f16[1, 1, n, 16]
y: f16[b, 4, n, 16] = encore.Rotation(h, cos, sin) {x = "", y = [0, 1, 2, 3]}  # "rotated"
out y
)");
}

// As GPT-NeoX has it.
constexpr const char* kOfParts = R"(in x: f16[b, 4, n, 24]
in cos: f16[1, 1, n, 16]
in sin: f16[1, 1, n, 16]
const zero: i64[1] = [0]
const half: i64[1] = [8]
const size: i64[1] = [16]
const end: i64[1] = [9223372036854775807]
const last: i64[1] = [3]
h: f16[b, 4, n, 16] = Slice@13(x, zero, size, last)
rest: f16[b, 4, n, 8] = Slice@13(x, size, end, last)
plain: f16[b, 4, n, 16] = Mul(h, cos)
low: f16[b, 4, n, 8] = Slice@13(h, zero, half, last)
high: f16[b, 4, n, 8] = Slice@13(h, half, end, last)
negative: f16[b, 4, n, 8] = Neg(high)
turned: f16[b, 4, n, 16] = Concat(negative, low) {axis = -1}
by_sin: f16[b, 4, n, 16] = Mul(turned, sin)
sum: f16[b, 4, n, 16] = Add(plain, by_sin)  # "rotated"
y: f16[b, 4, n, 24] = Concat(sum, rest) {axis = -1}
out y
)";

TEST(Rotations, OfTheFirstPartOfHeads) {
  const std::string made = R"(in x: f16[b, 4, n, 24]
in cos: f16[1, 1, n, 16]
in sin: f16[1, 1, n, 16]
y: f16[b, 4, n, 24] = encore.Rotation(x, cos, sin) {x = "", y = [0, 1, 2, 3]}  # "rotated"
out y
)";
  EXPECT_EQ(after("rotations", kOfParts), made);
  const std::string split = replaced(
      replaced(kOfParts, "rest: f16[b, 4, n, 8] = Slice@13(x, size, end, last)\n", ""),
      "h: f16[b, 4, n, 16] = Slice@13(x, zero, size, last)\n",
      "const sizes: i64[2] = [16, 8]\nh: f16[b, 4, n, 16], rest: f16[b, 4, n, 8] = Split(x, sizes) {axis = 3}\n");
  EXPECT_EQ(after("rotations", split), made);
}

TEST(Rotations, OtherPartsAreCopied) {
  const auto is_copied = [](const std::string& text) {
    const std::string made = after("rotations", text);
    return made.find("encore.Rotation(") != made.npos && made.find("Concat(sum, ") != made.npos;
  };
  EXPECT_TRUE(is_copied(replaced(kOfParts, "Slice@13(x, size, end, last)", "Slice@13(x, zero, half, last)")));
  EXPECT_TRUE(is_copied(replaced(kOfParts, "out y", "out y\nout sum")));
  EXPECT_TRUE(is_copied(replaced(replaced(kOfParts, "in cos", "in z: f16[b, 4, n, 24]\nin cos"),
                                 "Slice@13(x, size, end, last)", "Slice@13(z, size, end, last)")));
  const std::string first = after("rotations", replaced(kOfParts, "Concat(sum, rest)", "Concat(rest, sum)"));
  EXPECT_NE(first.find("Concat(rest, sum)"), first.npos);
}

TEST(Rotations, HalvesInFloats) {
  std::string text = replaced(kSpelled, "plain: f16[b, 4, n, 16] = Mul(h, cos)",
                              "w: f32[b, 4, n, 16] = Cast(h) {to = 1}\nplain: f32[b, 4, n, 16] = Mul(w, cos)");
  for (const char* table : {"cos", "sin"})
    text = replaced(text, std::string(table) + ": f16", std::string(table) + ": f32");
  text = replaced(replaced(text, "Slice@13(h, zero", "Slice@13(w, zero"), "Slice@13(h, half", "Slice@13(w, half");
  for (const char* part : {"low", "high", "negative", "turned", "by_sin"})
    text = replaced(text, std::string("\n") + part + ": f16", std::string("\n") + part + ": f32");
  text =
      replaced(text, "y: f16[b, 4, n, 16] = Add(plain, by_sin)  # \"rotated\"",
               "sum: f32[b, 4, n, 16] = Add(plain, by_sin)  # \"rotated\"\ny: f16[b, 4, n, 16] = Cast(sum) {to = 10}");
  std::string outline = kOutline;
  for (const char* table : {"cos", "sin"})
    outline = replaced(outline, std::string(table) + ": f16", std::string(table) + ": f32");
  EXPECT_EQ(after("rotations", text), outline);
}

// Which are turned before they are floats.
TEST(Rotations, HalvesTurnedAsHalves) {
  std::string text = replaced(kSpelled, "plain: f16[b, 4, n, 16] = Mul(h, cos)",
                              "w: f32[b, 4, n, 16] = Cast(h) {to = 1}\nplain: f32[b, 4, n, 16] = Mul(w, cos)");
  for (const char* table : {"cos", "sin"})
    text = replaced(text, std::string(table) + ": f16", std::string(table) + ": f32");
  text = replaced(text, "by_sin: f16[b, 4, n, 16] = Mul(turned, sin)",
                  "t: f32[b, 4, n, 16] = Cast(turned) {to = 1}\nby_sin: f32[b, 4, n, 16] = Mul(t, sin)");
  text =
      replaced(text, "y: f16[b, 4, n, 16] = Add(plain, by_sin)  # \"rotated\"",
               "sum: f32[b, 4, n, 16] = Add(plain, by_sin)  # \"rotated\"\ny: f16[b, 4, n, 16] = Cast(sum) {to = 10}");
  std::string outline = kOutline;
  for (const char* table : {"cos", "sin"})
    outline = replaced(outline, std::string(table) + ": f16", std::string(table) + ": f32");
  EXPECT_EQ(after("rotations", text), outline);
  expect_stays("rotations", text, "out y", "out sum");
  expect_stays("rotations", text, "out y", "out y\nout t");
  expect_stays("rotations", text, "Mul(w, cos)", "Mul(w, w)");
}

// Of Cohere and EVA.
constexpr const char* kOfPairs = R"(in h: f16[b, 4, n, 16]
in cos: f16[1, 1, n, 16]
in sin: f16[1, 1, n, 16]
const zero: i64[1] = [0]
const one: i64[1] = [1]
const two: i64[1] = [2]
const end: i64[1] = [9223372036854775807]
const last: i64[1] = [3]
const behind: i64[1] = [4]
const all: i64[4] = [0, 0, 0, 16]
plain: f16[b, 4, n, 16] = Mul(h, cos)
even: f16[b, 4, n, 8] = Slice@13(h, zero, end, last, two)
odd: f16[b, 4, n, 8] = Slice@13(h, one, end, last, two)
negative: f16[b, 4, n, 8] = Neg(odd)
first: f16[b, 4, n, 8, 1] = Unsqueeze(negative, behind)
second: f16[b, 4, n, 8, 1] = Unsqueeze(even, behind)
pairs: f16[b, 4, n, 8, 2] = Concat(first, second) {axis = -1}
turned: f16[b, 4, n, 16] = Reshape(pairs, all)
by_sin: f16[b, 4, n, 16] = Mul(turned, sin)
y: f16[b, 4, n, 16] = Add(plain, by_sin)  # "rotated"
out y
)";

TEST(Rotations, OfNeighbours) {
  EXPECT_EQ(after("rotations", kOfPairs), R"(in h: f16[b, 4, n, 16]
in cos: f16[1, 1, n, 16]
in sin: f16[1, 1, n, 16]
y: f16[b, 4, n, 16] = encore.Rotation(h, cos, sin) {interleaved = 1, x = "", y = [0, 1, 2, 3]}  # "rotated"
out y
)");
  const auto stays = [](const char* part, const char* by) { expect_stays("rotations", kOfPairs, part, by); };
  stays("Concat(first, second)", "Concat(second, first)");
  stays("Slice@13(h, one", "Slice@13(h, zero");
  stays("turned: f16[b, 4, n, 16]", "turned: f16[b, 4, ?, 16]");
  stays("Mul(h, cos)", "Mul(h, h)");
  stays("out y", "out y\nout pairs");
}

std::string behind_first(const std::vector<std::string>& prefixes) {
  std::string all = R"(in x: f16[b, 4, 6, 16]
in z_x: f16[b, 4, 6, 16]
in cos: f16[5, 16]
in sin: f16[5, 16]
const zero: i64[1] = [0]
const one: i64[1] = [1]
const half: i64[1] = [8]
const end: i64[1] = [9223372036854775807]
const row: i64[1] = [2]
const last: i64[1] = [3]
)";
  for (const std::string& prefix : prefixes)
    for (const char c : std::string_view(R"(@token: f16[b, 4, 1, 16] = Slice@13(@x, zero, one, row)
@h: f16[b, 4, 5, 16] = Slice@13(@x, one, end, row)
@plain: f16[b, 4, 5, 16] = Mul(@h, cos)
@low: f16[b, 4, 5, 8] = Slice@13(@h, zero, half, last)
@high: f16[b, 4, 5, 8] = Slice@13(@h, half, end, last)
@negative: f16[b, 4, 5, 8] = Neg(@high)
@turned: f16[b, 4, 5, 16] = Concat(@negative, @low) {axis = -1}
@by_sin: f16[b, 4, 5, 16] = Mul(@turned, sin)
@sum: f16[b, 4, 5, 16] = Add(@plain, @by_sin)  # "rotated"
@y: f16[b, 4, 6, 16] = Concat(@token, @sum) {axis = 2}
out @y
)"))
      c == '@' && !all.ends_with("Slice") ? all += prefix : all += c;
  return all;
}

constexpr const char* kBehindFirst = R"(in x: f16[b, 4, 6, 16]
in cos: f16[5, 16]
in sin: f16[5, 16]
const "cos's first rows": f16[1, 16]
const "sin's first rows": f16[1, 16]
"cos behind others": f16[6, 16] = Concat("cos's first rows", cos) {axis = 0}  # "cos"
"sin behind others": f16[6, 16] = Concat("sin's first rows", sin) {axis = 0}  # "sin"
y: f16[b, 4, 6, 16] = encore.Rotation(x, "cos behind others", "sin behind others") {x = "", y = [0, 1, 2, 3]}  # "rotated"
out y
)";

TEST(Rotations, OfRowsBehindOthers) {
  EXPECT_EQ(after("rotations", replaced(behind_first({""}), "in z_x: f16[b, 4, 6, 16]\n", "")), kBehindFirst);
}

TEST(Rotations, OfRowsThatAreTurnedBehindOthers) {
  std::string text = replaced(behind_first({""}), "in z_x: f16[b, 4, 6, 16]\n", "");
  text = replaced(text, "in x: f16[b, 4, 6, 16]", "in r: f16[b, 6, 4, 16]");
  text = replaced(text, "token: f16[b, 4, 1, 16] = Slice@13(x, zero, one, row)",
                  "x: f16[b, 4, 6, 16] = Transpose(r) {perm = [0, 2, 1, 3]}\n"
                  "t: f16[b, 1, 4, 16] = Slice@13(r, zero, one, one)\n"
                  "token: f16[b, 4, 1, 16] = Transpose(t) {perm = [0, 2, 1, 3]}");
  const std::string made = after("rotations", text);
  EXPECT_NE(made.find("encore.Rotation(r, \"cos behind others\""), made.npos) << made;
  EXPECT_EQ(made.find("Slice"), made.npos) << made;
  const std::string other =
      after("rotations", replaced(text, "Slice@13(r, zero, one, one)", "Slice@13(r, zero, one, row)"));
  EXPECT_NE(other.find("encore.Rotation(r, cos, sin)"), other.npos) << other;
}

TEST(Rotations, OfRowsBehindOthersByTheSameTables) {
  const std::string made = after("rotations", behind_first({"", "z_"}));
  EXPECT_NE(made.find("encore.Rotation(x, \"cos behind others\", \"sin behind others\")"), made.npos) << made;
  EXPECT_NE(made.find("encore.Rotation(z_x, \"cos behind others\", \"sin behind others\")"), made.npos) << made;
}

TEST(Rotations, OtherRowsAreCopied) {
  const auto is_copied = [](const char* part, const char* by) {
    const std::string made = after("rotations", replaced(behind_first({""}), part, by));
    EXPECT_EQ(made.find("behind others"), made.npos) << made;
    EXPECT_NE(made.find("encore.Rotation("), made.npos) << made;
  };
  is_copied("Concat(token, sum)", "Concat(sum, token)");
  is_copied("Slice@13(x, zero, one, row)", "Slice@13(z_x, zero, one, row)");
  is_copied("Slice@13(x, zero, one, row)", "Slice@13(x, one, end, row)");
  is_copied("Concat(token, sum) {axis = 2}", "Concat(token, sum) {axis = 1}");
  is_copied("out y", "out y\nout sum");
  is_copied("in cos: f16[5, 16]", "in cos: f16[1, 16]");
  is_copied("in cos: f16[5, 16]", "in cos: f16[16]");
  is_copied("in sin: f16[5, 16]", "in sin: f16[n, 16]");
}

// The norm stays if others read it; where heads lie is told all the same.
TEST(Rotations, ANormThatOthersRead) {
  const std::string made = after("rotations", replaced(kSpelled, "out y", "out y\nout normed"));
  EXPECT_NE(made.find("encore.Rotation(normed, cos, sin) {x = \"transpose 0,2,1,3\", y = [0, 2, 1, 3]}"), made.npos)
      << made;
}

TEST(Rotations, ANormOfMoreThanAHead) {
  std::string text = replaced(kSpelled, "rows: f16[b, n, 4, 16] = Reshape(x, heads)",
                              "all: f16[b, n, 64] = RMSNormalization(x, wide) {epsilon = 0.5}\n"
                              "normed: f16[b, n, 4, 16] = Reshape(all, heads)");
  text = replaced(text, "normed: f16[b, n, 4, 16] = RMSNormalization(rows, gamma) {epsilon = 0.5}\n", "");
  const std::string made = after("rotations", replaced(text, "const gamma: f16[16]", "const wide: f16[64]"));
  EXPECT_NE(made.find("encore.Rotation(all, cos, sin) {x = \"reshape 0,0,4,16; "), made.npos) << made;
}

TEST(Rotations, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("rotations", kSpelled, part, by); };
  stays("Concat(negative, low)", "Concat(low, negative)");
  stays("Concat(negative, low)", "Concat(high, low)");
  stays("{axis = -1}", "{axis = 2}");
  stays("half: i64[1] = [8]", "half: i64[1] = [6]");
  stays("Mul(h, cos)", "Mul(normed, cos)");
  stays("Mul(h, cos)", "Mul(h, h)");
  stays("Add(plain", "Sub(plain");
  stays("out y", "out y\nout plain");
  stays("out y", "out y\nout turned");
  stays("plain: f16", "elsewhere plain: f16");
  stays("in cos: f16[1, 1, n, 16]", "in cos: f16[1, 1, n, 1]");
  stays("in sin: f16[1, 1, n, 16]", "in sin: f16");
}

TEST(Rotations, SayWhyTheyStay) {
  EXPECT_EQ(
      notes_of("rotations", replaced(kSpelled, "y: f16", "y: f64")),
      Notes{"Add node 'rotated' does not become a rotation: there are no kernels for heads of this type, size and "
            "number of dimensions"});
  EXPECT_EQ(notes_of("rotations", replaced(kSpelled, "in cos: f16[1, 1, n, 16]", "in cos: f16[1, 1, n, 1]")),
            Notes{"Add node 'rotated' does not become a rotation: cosines or sines are not of the size of heads"});
  EXPECT_EQ(notes_of("rotations", kSpelled), Notes{});
  EXPECT_EQ(notes_of("rotations", replaced(kSpelled, "Add(plain, by_sin)", "Sub(plain, by_sin)")), Notes{});
}

}  // namespace
}  // namespace encore::fuse::tests
