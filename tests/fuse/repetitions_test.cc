#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// What torch's exporter makes of a mask of padding: what a causal one would be is true everywhere.
constexpr const char* kMask = R"(in scores: f16[b, 2, 4, 4]
in padding: bool[b, 1, 1, 4]
const all: bool[1, 1, 4, 1] = [1, 1, 1, 1]
const zero: f16[] = 0
const lowest: f16[] = -65504
both: bool[b, 1, 4, 4] = And(all, padding)
mask: f16[b, 1, 4, 4] = Where(both, zero, lowest)
y: f16[b, 2, 4, 4] = Add(scores, mask)
out y
)";

TEST(Repetitions, AreNotMadeForWhoBroadcastsAnyway) {
  EXPECT_EQ(after("repetitions", kMask), R"(in scores: f16[b, 2, 4, 4]
in padding: bool[b, 1, 1, 4]
const zero: f16[] = 0.0
const lowest: f16[] = -65504.0
mask: f16[b, 1, 1, 4] = Where(padding, zero, lowest)
y: f16[b, 2, 4, 4] = Add(scores, mask)
out y
)");
}

TEST(Repetitions, OfCastsAreOfWhatIsCast) {
  EXPECT_EQ(after("repetitions", R"(in scores: f16[b, 2, s, s]
in mask: i64[b, 1, 1, s]
in all: i64[4]
const one: f16[] = 1
const lowest: f16[] = -65504
square: i64[b, 1, s, s] = Expand(mask, all)
seen: f16[b, 1, s, s] = Cast(square) {to = 10}
hidden: f16[b, 1, s, s] = Sub(one, seen)
bias: f16[b, 1, s, s] = Mul(hidden, lowest)
y: f16[b, 2, s, s] = Add(scores, bias)
out y
)"),
            R"(in scores: f16[b, 2, s, s]
in mask: i64[b, 1, 1, s]
in all: i64[4]
const one: f16[] = 1.0
const lowest: f16[] = -65504.0
seen: f16[b, 1, 1, s] = Cast(mask) {to = 10}
hidden: f16[b, 1, 1, s] = Sub(one, seen)
bias: f16[b, 1, 1, s] = Mul(hidden, lowest)
y: f16[b, 2, s, s] = Add(scores, bias)
out y
)");
}

TEST(Repetitions, StayForOthers) {
  const auto stays = [](const char* part, const char* by) { expect_stays("repetitions", kMask, part, by); };
  stays("[1, 1, 1, 1]", "[1, 1, 1, 0]");
  stays("const all: bool[1, 1, 4, 1] = [1, 1, 1, 1]", "in all: bool[1, 1, 4, 1]");
  stays("And(", "Or(");
  stays("And(", "And@1(");  // which broadcasts otherwise
  stays("y: f16[b, 2, 4, 4] = Add(scores, mask)", "y: f16[b, 1, 4, 4] = Softmax(mask)");
  stays("out y", "out y\nout mask");
  stays("out y", "out y\nout both");
  stays("in scores: f16[b, 2, 4, 4]", "in scores: f16[b, 2, 1, 4]");  // of which the mask makes four
}

// Where dimensions stay, all may read the other operand.
std::string with(const std::string& type, const std::string& number, const std::string& call) {
  return after(type == "bool" ? "repetitions" : "neutral_operands",
               "in x: " + type + "[n, 2]\nconst c: " + type + "[2] = [" + number + ", " + number + "]\nz: " + type +
                   "[n, 2] = " + call + "\ny: " + type + "[2, n] = Transpose(z) {perm = [1, 0]}\nout y\n");
}
bool is_left(const std::string& type, const std::string& number, const std::string& call) {
  return with(type, number, call).find("Transpose(x)") != std::string::npos;
}

TEST(Repetitions, OfOperandsThatOthersLeave) {
  EXPECT_TRUE(is_left("f16", "1", "Mul(x, c)"));
  EXPECT_TRUE(is_left("f16", "1", "Mul(c, x)"));
  EXPECT_TRUE(is_left("f32", "1", "Div(x, c)"));
  EXPECT_TRUE(is_left("f32", "-0.0", "Add(x, c)"));
  EXPECT_TRUE(is_left("f32", "0.0", "Sub(x, c)"));
  EXPECT_TRUE(is_left("i64", "0", "Add(x, c)"));
  EXPECT_TRUE(is_left("bool", "1", "And(c, x)"));
  EXPECT_TRUE(is_left("bool", "0", "Or(x, c)"));
  EXPECT_TRUE(is_left("bool", "0", "Xor(x, c)"));
  EXPECT_TRUE(is_left("bool", "1", "Where(c, x, c)"));
  EXPECT_TRUE(is_left("bool", "0", "Where(c, c, x)"));
}

TEST(Repetitions, OfNoneThatOthersChange) {
  EXPECT_FALSE(is_left("f32", "0.0", "Add(x, c)"));  // to -0 it makes a difference
  EXPECT_FALSE(is_left("f32", "-0.0", "Sub(x, c)"));
  EXPECT_FALSE(is_left("f32", "1", "Div(c, x)"));
  EXPECT_FALSE(is_left("f32", "2", "Mul(x, c)"));
  EXPECT_FALSE(is_left("i64", "0", "Sub(c, x)"));
  EXPECT_FALSE(is_left("bool", "0", "And(c, x)"));
  EXPECT_FALSE(is_left("bool", "1", "Or(x, c)"));
  EXPECT_FALSE(is_left("bool", "0", "Where(c, x, c)"));
}

}  // namespace
}  // namespace encore::fuse::tests
