#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kPair = R"(in x: f32[n, 8]
const scale: f32[] = 0.5
const zero: u8[] = 100
q: u8[n, 8] = QuantizeLinear(x, scale, zero)  # "first"
y: f32[n, 8] = DequantizeLinear(q, scale, zero)  # "last"
out y
)";

TEST(LinearQuantization, IsElementwise) {
  EXPECT_EQ(after("elementwise", kPair), R"(in x: f32[n, 8]
y: f32[n, 8] = encore.Elementwise(x) {expression = "v0: uint8 = to_uint8[0.5, 100](x0); v1: float = from_linear[0.5, 100](v0); out v1"}  # "first to last"
out y
)");
  std::string text = replaced(kPair, "zero: u8[] = 100", "zero: i8[] = -3");
  text = after("elementwise", replaced(replaced(text, "q: u8", "q: i8"), "out y", "out y\nout q"));
  EXPECT_NE(text.find("q: i8[n, 8], y: f32[n, 8] = encore.Elementwise(x)"), std::string::npos) << text;
  EXPECT_NE(text.find("v0: int8 = to_int8[0.5, -3](x0)"), std::string::npos) << text;
}

TEST(LinearQuantization, WithoutAZeroPointHasZero) {
  std::string text = replaced(kPair, "QuantizeLinear(x, scale, zero)", "QuantizeLinear(x, scale)");
  text = after("elementwise", replaced(text, "DequantizeLinear(q, scale, zero)", "DequantizeLinear(q, scale)"));
  EXPECT_NE(text.find("to_uint8[0.5, 0](x0)"), std::string::npos) << text;
}

TEST(LinearQuantization, IsNotElementwiseByNumbersThatNobodyKnows) {
  const auto stays = [](const char* part, const char* by) {
    const std::string made = after("elementwise", replaced(kPair, part, by));
    EXPECT_NE(made.find("QuantizeLinear("), made.npos) << made;
  };
  stays("const scale: f32[] = 0.5", "in scale: f32[]");
  stays("const scale: f32[] = 0.5", "const scale: f32[8] = [1, 2, 3, 4, 5, 6, 7, 8]");
  stays("const scale: f32[] = 0.5", "const scale: f32[] = inf");
  stays("const zero: u8[] = 100", "in zero: u8[]");
  stays("QuantizeLinear(x, scale, zero)", "QuantizeLinear@23(x, scale, zero) {precision = 10}");
}

// Bytes that become numbers and the same bytes again.
constexpr const char* kTwice = R"(in q: u8[n, 8]
const scale: f32[] = 0.5
const zero: u8[] = 100
x: f32[n, 8] = DequantizeLinear(q, scale, zero)
t: f32[8, n] = Transpose(x) {perm = [1, 0]}
r: f32[8, n] = Relu(t)
b: u8[8, n] = QuantizeLinear(r, scale, zero)
y: f32[8, n] = DequantizeLinear(b, scale, zero)
z: f32[8, n] = Neg(y)
out z
)";

TEST(Requantizations, OfWhatIsMovedAreNone) {
  const std::string made = after("requantizations", kTwice);
  EXPECT_NE(made.find("z: f32[8, n] = Neg(r)"), made.npos) << made;
  EXPECT_EQ(made.find(" QuantizeLinear("), made.npos) << made;
}

TEST(Requantizations, StayWhereNumbersMayBeOthers) {
  const auto stays = [](const char* part, const char* by) {
    const std::string made = after("requantizations", replaced(kTwice, part, by));
    EXPECT_NE(made.find("Neg(y)"), made.npos) << made;
  };
  stays("= Relu(t)", "= Exp(t)");
  stays("b: u8[8, n] = QuantizeLinear(r, scale, zero)",
        "const other: f32[] = 0.25\nb: u8[8, n] = QuantizeLinear(r, other, zero)");
  stays("y: f32[8, n] = DequantizeLinear(b, scale, zero)",
        "const other: u8[] = 101\ny: f32[8, n] = DequantizeLinear(b, scale, other)");
  stays("const scale: f32[] = 0.5", "const scale: f32[] = 1e-38");
  stays("x: f32[n, 8] = DequantizeLinear(q, scale, zero)",
        "const own: f32[] = 0.125\nx: f32[n, 8] = DequantizeLinear(q, own, zero)");
  stays("out z", "out z\nout y");
}

TEST(Requantizations, OfPiecesAreNoneIfAllAreMadeSo) {
  const std::string two = replaced(kTwice, "r: f32[8, n] = Relu(t)", "r: f32[16, n] = Concat(t, t) {axis = 0}");
  EXPECT_NE(after("requantizations", two).find("= Neg(r)"), std::string::npos);
  const std::string other = replaced(two, "Concat(t, t)", "Concat(t, u)");
  EXPECT_NE(after("requantizations", "in u: f32[8, n]\n" + other).find("= Neg(y)"), std::string::npos);
}

}  // namespace
}  // namespace encore::fuse::tests
