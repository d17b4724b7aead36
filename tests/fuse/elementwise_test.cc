#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kChain = R"(in x: f32[n, 8]
in row: f32[8]
const half: f32[] = 0.5
a: f32[n, 8] = Mul(x, row)  # "first"
b: f32[n, 8] = Add(a, half)
y: f32[n, 8] = LeakyRelu(b)  # "last"
out y
)";

TEST(Elementwise, AChainIsOne) {
  EXPECT_EQ(after("elementwise", kChain), R"(in x: f32[n, 8]
in row: f32[8]
y: f32[n, 8] = encore.Elementwise(x, row) {expression = "v0: float = mul(x0, x1); v1: float = add(v0, 0.5); v2: float = leaky_relu[0.01](v1); out v2"}  # "first to last"
out y
)");
}

TEST(Elementwise, WhatOthersReadIsMadeToo) {
  const std::string text = replaced(kChain, "out y", "m: f32[n, 4] = MatMul(b, w)\nout a\nout y\nout m");
  const std::string made = after("elementwise", replaced(text, "in row", "in w: f32[8, 4]\nin row"));
  EXPECT_NE(made.find("a: f32[n, 8], b: f32[n, 8], y: f32[n, 8] = encore.Elementwise(x, row)"), std::string::npos)
      << made;
  EXPECT_NE(made.find("out v0, v1, v2\""), std::string::npos) << made;
}

TEST(Elementwise, OtherShapesAreOthers) {
  // The row is made once and not for each of the rows.
  const std::string made = after("elementwise", R"(in x: f32[n, 8]
in row: f32[8]
r: f32[8] = Sqrt(row)
s: f32[8] = Neg(r)
a: f32[n, 8] = Mul(x, s)
y: f32[n, 8] = Tanh(a)
out y
)");
  EXPECT_NE(made.find("s: f32[8] = encore.Elementwise(row)"), std::string::npos) << made;
  EXPECT_NE(made.find("y: f32[n, 8] = encore.Elementwise(x, s)"), std::string::npos) << made;
}

// What a row costs for each of them is less than a kernel.
constexpr const char* kScaled = R"(in x: f16[n, 8]
in shift: f16[1, 8]
in scale: f16[8]
const one: f16[] = 1.0
s: f16[8] = Add(scale, one)  # "first"
a: f16[n, 8] = Mul(x, s)
b: f16[1, 8] = Neg(shift)
y: f16[n, 8] = Sub(a, b)  # "last"
out y
)";

TEST(Elementwise, WhatIsLightIsMadeWhereItIsBroadcast) {
  EXPECT_EQ(after("elementwise", kScaled), R"(in x: f16[n, 8]
in shift: f16[1, 8]
in scale: f16[8]
y: f16[n, 8] = encore.Elementwise(scale, shift, x) {expression = "v0: float16 = add(x0, 1); v1: float16 = neg(x1); v2: float16 = mul(x2, v0); v3: float16 = sub(v2, v1); out v3"}  # "first to last"
out y
)");
}

TEST(Elementwise, WhatOthersReadIsMadeOnce) {
  for (const char* reader : {"out s", "m: f16[8] = MatMul(s, w)\nout m", "m: f16[k, 8] = Mul(z, s)\nout m"}) {
    std::string text = replaced(kScaled, "out y", std::string("out y\n") + reader);
    text = replaced(text, "in x: f16[n, 8]", "in x: f16[n, 8]\nin w: f16[8, 8]\nin z: f16[k, 8]");
    EXPECT_NE(after("elementwise", text).find("s: f16[8] = Add(scale, one)"), text.npos) << reader;
  }
}

TEST(Elementwise, NoPathLeavesAndComesBack) {
  const std::string made = after("elementwise", R"(in x: f32[8, 8]
a: f32[8, 8] = Exp(x)
b: f32[8, 8] = Neg(a)
m: f32[8, 8] = MatMul(b, b)
y: f32[8, 8] = Add(a, m)
out y
)");
  EXPECT_NE(made.find("a: f32[8, 8], b: f32[8, 8] = encore.Elementwise(x)"), std::string::npos) << made;
  EXPECT_NE(made.find("y: f32[8, 8] = Add(a, m)"), std::string::npos) << made;
}

// A part of a part is one, and what else nobody reads is not made.
TEST(Elementwise, PartsAreReadWhereTheyAre) {
  constexpr const char* kGated = R"(in x: f32[n, 19]
in z: f32[n, 8]
in w: f32[8, 8]
const sizes: i64[3] = [8, 8, 3]
const one: i64[1] = [1]
const two: i64[1] = [2]
a: f32[n, 8], b: f32[n, 8], c: f32[n, 3] = Split@13(x, sizes) {axis = 1}
g: f32[n, 1] = Slice@13(c, one, two, one)
m: f32[n, 8] = MatMul(b, w)
y: f32[n, 8] = Mul(z, g)
v: f32[n, 8] = Tanh(a)
out y
out v
out m
)";
  Plan plan = plan_from(kGated);
  rewrite(plan, {});
  const std::string made = text_of(plan);
  const auto has = [&](const char* part) { EXPECT_NE(made.find(part), made.npos) << made; };
  has("_, b: f32[n, 8], _ = Split(x, sizes)");
  has("(z, x) {expression = \"part x1 along -1 from 17 to 18; v0: float = mul(x0, x1); out v0\"}");
  has("(x) {expression = \"part x0 along -1 from 0 to 8; v0: float = tanh(x0); out v0\"}");
  EXPECT_EQ(made.find("Slice"), made.npos) << made;
}

TEST(Elementwise, PartsThatOthersReadAreMade) {
  const std::string made = after("elementwise", R"(in x: f32[n, 8]
a: f32[n, 4], b: f32[n, 4] = Split@13(x) {axis = 1}
y: f32[n, 4] = Tanh(a)
out y
out a
)");
  EXPECT_NE(made.find("Tanh(a)"), made.npos) << made;
}

TEST(Elementwise, PartsThatMayNotAddUpAreMade) {
  const auto split_of = [](const char* x) {
    return after("elementwise", std::string("in x: f32[") + x + R"(]
const sizes: i64[2] = [4, 2]
a: f32[4, 8], b: f32[2, 8] = Split@13(x, sizes)
y: f32[4, 8] = Tanh(a)
z: f32[2, 8] = Exp(b)
out y
out z
)");
  };
  EXPECT_NE(split_of("6, 8").find("part x0 along"), std::string::npos);
  for (const char* x : {"n, 8", "7, 8", "5, 8"}) EXPECT_EQ(split_of(x).find("part x0 along"), std::string::npos) << x;
}

constexpr const char* kJoined = R"(in x: f16[n, 8]
in y: f16[n, 16]
in row: f16[24]
a: f16[n, 24] = Concat@13(x, y) {axis = 1}  # "joined"
b: f16[n, 24] = Mul(a, row)
z: f16[n, 24] = Relu(b)
out z
)";

std::string with_unread_dropped(const std::string& text) {
  Plan plan = plan_from(text);
  for (const Pass& pass : passes())
    if (const std::string_view name = pass.name; name == "elementwise" || name == "unread") run(pass, plan);
  return text_of(plan);
}

TEST(Elementwise, PiecesAreReadWhereTheyAre) {
  EXPECT_EQ(with_unread_dropped(kJoined), R"(in x: f16[n, 8]
in y: f16[n, 16]
in row: f16[24]
z: f16[n, 24] = encore.Elementwise(x, y, row) {expression = "join x0 to x1 along -1; v0: float16 = mul(x0, x2); v1: float16 = relu(v0); out v1"}  # " to "
out z
)");
}

// Each program reads them, one of a single step too; an axis may be counted from the end.
TEST(Elementwise, PiecesAreReadByAll) {
  std::string text = replaced(kJoined, "out z", "m: f16[n, 24] = MatMul(z, w)\nu: f16[n, 24] = Sub(m, a)\nout u");
  text = replaced(replaced(text, "in row", "in w: f16[24, 24]\nin row"), "axis = 1", "axis = -1");
  const std::string made = with_unread_dropped(text);
  EXPECT_NE(made.find("z: f16[n, 24] = encore.Elementwise(x, y, row) {expression = \"join x0 to x1 along -1; "),
            made.npos)
      << made;
  EXPECT_NE(made.find("(m, x, y) {expression = \"join x1 to x2 along -1; v0: float16 = sub(x0, x1); out v0\"}"),
            made.npos)
      << made;
  EXPECT_EQ(made.find("Concat"), made.npos) << made;
}

TEST(Elementwise, PiecesThatOthersReadTogetherAreJoined) {
  const auto is_joined = [](const std::string& text) {
    const std::string made = with_unread_dropped(text);
    EXPECT_NE(made.find("= Concat(x, y"), made.npos) << made;
    EXPECT_NE(made.find("= encore.Elementwise(a, row)"), made.npos) << made;
  };
  is_joined(std::string(kJoined) + "out a\n");
  is_joined(replaced(kJoined, "out z", "s: f16[n, 24] = Softmax(a)\nout s\nout z"));
  is_joined(replaced(kJoined, "(b)", "(b)\nm: f16[n, 24] = MatMul(row, a)\nout m"));
  std::string pieces = "(x, y";
  for (int i = 0; i < 64; ++i) pieces += ", y";
  is_joined(replaced(kJoined, "(x, y", pieces));
}

// A constant of one element may be what gives a result its dimensions.
TEST(Elementwise, NumbersHaveNoDimensions) {
  const std::string made = after("elementwise", R"(in x: f32[]
const one: f32[1] = 1
const two: f32[] = 2
a: f32[1] = Add(x, one)
b: f32[1] = Mul(a, two)
c: f32[1] = Neg(one)
y: f32[1] = Sub(b, c)
out y
)");
  EXPECT_NE(made.find("v0: float = add(x0, x1); v1: float = mul(v0, 2); v2: float = neg(x1); v3: float = sub(v1, v2)"),
            std::string::npos)
      << made;
}

TEST(Elementwise, TypesAreSaid) {
  const std::string made = after("elementwise", R"(in x: f16[n]
in least: f32[n]
w: f32[n] = Cast(x) {to = 1}
c: bool[n] = Less(w, least)
z: f32[n] = Where(c, least, w)
y: f16[n] = Cast(z) {to = 10}
out y
)");
  EXPECT_NE(made.find("v0: float = cast(x0); v1: bool = less(v0, x1); v2: float = where(v1, x1, v0); "
                      "v3: float16 = cast(v2); out v3"),
            std::string::npos)
      << made;
}

// RoBERTa's numbers of positions.
constexpr const char* kPositions = R"(in ids: i64[b, s]
in count: i64[b, s]
const pad: i64[] = 1
is: bool[b, s] = Equal(ids, pad)  # "first"
seen: bool[b, s] = Not(is)
c: i32[b, s] = Cast(count) {to = 6}
m: i32[b, s] = Cast(seen) {to = 6}
p: i32[b, s] = Mul(c, m)
w: i64[b, s] = Cast(p) {to = 7}
y: i64[b, s] = Add(w, pad)  # "last"
out y
)";

TEST(Elementwise, OfIntegers) {
  EXPECT_EQ(after("elementwise", kPositions), R"(in ids: i64[b, s]
in count: i64[b, s]
y: i64[b, s] = encore.Elementwise(ids, count) {expression = "v0: bool = equal(x0, int 1); v1: bool = not(v0); v2: int32 = cast(x1); v3: int32 = cast(v1); v4: int32 = mul(v2, v3); v5: int64 = cast(v4); v6: int64 = add(v5, int 1); out v6"}  # "first to last"
out y
)");
  const auto type = [](const char* of) {
    return after("elementwise", replaced(replaced(kPositions, "in ids: i64", std::string("in ids: ") + of),
                                         "const pad: i64", std::string("const pad: ") + of));
  };
  for (const char* of : {"i8", "u64", "f64"}) EXPECT_NE(type(of).find("Equal(ids"), std::string::npos) << type(of);
}

// What 32 bits do not hold is read.
TEST(Elementwise, LongIntegersAreRead) {
  const std::string made = after("elementwise", R"(in x: i64[n]
const long: i64[] = -9223372036854775808
const short: i64[] = -2147483648
a: i64[n] = Max(x, long)
y: i64[n] = Sub(short, a)
out y
)");
  EXPECT_NE(
      made.find("(x, long) {expression = \"v0: int64 = max(x0, x1); v1: int64 = sub(int -2147483648, v0); out v1"),
      made.npos)
      << made;
}

// A kernel would have to tell of it.
TEST(Elementwise, IntegersAreDividedByNumbersAlone) {
  const std::string text = R"(in x: i64[n]
in by: i64[n]
const seven: i64[] = 7
const zero: i64[] = 0
const long: i64[] = 4294967296
a: i64[n] = Neg(x)
b: i64[n] = Div(a, seven)
y: i64[n] = Abs(b)
out y
)";
  const auto divided = [&](const char* by) {
    const std::string made = after("elementwise", replaced(text, "Div(a, seven)", by));
    return made.find(" = Abs(") == made.npos && made.find(" = Neg(") == made.npos;
  };
  EXPECT_TRUE(divided("Div(a, seven)"));
  EXPECT_TRUE(divided("Mod@13(a, seven)"));
  EXPECT_TRUE(divided("Mod@13(a, seven) {fmod = 1}"));
  for (const char* by :
       {"Div(a, by)", "Div(seven, a)", "Div(a, zero)", "Div(a, long)", "Mod@13(a, by)", "Pow(a, seven)"})
    EXPECT_FALSE(divided(by)) << by;
  const std::string of_floats = replaced(replaced(replaced(text, "in x: i64", "in x: f32"), "a: i64", "a: f32"),
                                         "Div(a, seven)", "Cast(a) {to = 7}");
  EXPECT_NE(after("elementwise", of_floats).find("v1: int64 = cast(v0); v2: int64 = abs(v1)"), std::string::npos);
}

// They would have all of it computed as integers are.
TEST(Elementwise, IntegersAreNotMadeWhereOnlyFloatsAre) {
  const char* const text = R"(in x: f16[b, n, 8]
in ids: i64[b, 1, 8]
const pad: i64[] = 1
const low: f16[] = -1
is: bool[b, 1, 8] = Equal(ids, pad)
no: bool[b, 1, 8] = Not(is)
a: f16[b, n, 8] = Where(no, x, low)
y: f16[b, n, 8] = Neg(a)
out y
)";
  const std::string made = after("elementwise", text);
  EXPECT_NE(made.find("no: bool[b, 1, 8] = encore.Elementwise(ids)"), made.npos) << made;
  EXPECT_NE(made.find("y: f16[b, n, 8] = encore.Elementwise(no, x)"), made.npos) << made;
  const std::string whole =
      after("elementwise", replaced(text, "y: f16[b, n, 8] = Neg(a)", "y: i32[b, n, 8] = Cast(a) {to = 6}"));
  EXPECT_NE(whole.find("y: i32[b, n, 8] = encore.Elementwise(ids, x)"), whole.npos) << whole;
}

// Dimensions of one are none to a kernel.
TEST(Elementwise, OfManyDimensions) {
  const std::string made = after("elementwise", R"(in x: f32[1, n, 8, 3, 4, 2]
a: f32[1, n, 8, 3, 4, 2] = Neg(x)
y: f32[1, n, 8, 3, 4, 2] = Relu(a)
out y
)");
  EXPECT_NE(made.find("y: f32[1, n, 8, 3, 4, 2] = encore.Elementwise(x)"), made.npos) << made;
}

TEST(Elementwise, StaysOtherwise) {
  const char* const kTwo = R"(in x: f32[n, 8]
in y: f32[n, 8]
a: f32[n, 8] = Mul(x, y)
b: f32[n, 8] = Relu(a)
out b
)";
  EXPECT_NE(after("elementwise", kTwo).find("encore.Elementwise"), std::string::npos);
  const auto stays = [&](const char* part, const char* by) { expect_stays("elementwise", kTwo, part, by); };
  stays("Mul(x, y)", "Mul@6(x, y)");
  stays("Relu(a)", "Softmax(a)");
  stays("Relu(a)", "com.microsoft.Relu(a)");
  stays("a: f32[n, 8]", "a: f32[?, 8]");
  expect_stays("elementwise", replaced(kTwo, "a: f32[n, 8]", "a: f32[n, 3, 3, 2, 2, 8]"), "b: f32[n, 8]",
               "b: f32[n, 3, 3, 2, 2, 8]");
}

// As many as there may be in a kernel, and then others.
TEST(Elementwise, LongChainsAreSeveral) {
  std::string text = "in x: f32[n]\n", last = "x";
  for (int i = 0; i < 300; ++i) {
    const std::string next = "v" + std::to_string(i);
    text += next + ": f32[n] = Neg(" + last + ")\n";
    last = next;
  }
  const std::string made = after("elementwise", text + "out " + last + "\n");
  size_t kernels = 0;
  for (size_t at = made.find("encore."); at != std::string::npos; at = made.find("encore.", at + 1)) ++kernels;
  EXPECT_EQ(kernels, 3) << made;
  EXPECT_EQ(made.find(" = Neg("), std::string::npos) << made;
}

TEST(Elementwise, WhatIsTooMuchForAKernelStays) {
  std::string text = "in w: f32[n, 80]\n", pieces;
  for (int i = 0; i < 40; ++i) {
    text += "in x" + std::to_string(i) + ": f32[n, 2]\n";
    pieces += (i ? ", x" : "x") + std::to_string(i);
  }
  for (const char* const all : {"a", "b"})
    text += std::string(all) + ": f32[n, 80] = Concat(" + pieces + ") {axis = 1}\n";
  const std::string sum = "y: f32[n, 80] = Add(a, b)";
  const std::string made = after("elementwise", text + sum + "\nu: f32[n, 80] = Neg(w)\nout y\nout u\n");
  EXPECT_NE(made.find(sum), std::string::npos) << made;
}

}  // namespace
}  // namespace encore::fuse::tests
