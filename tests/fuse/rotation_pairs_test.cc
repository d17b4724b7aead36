#include <regex>

#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// Heads of eight values, of which this is one.
std::string rotation(const std::string& name, const std::string& x, const std::string& cos = "cos") {
  constexpr const char* kSpelled = R"(%plain: f16[b, 2, n, 8] = Mul(X, COS)
%low: f16[b, 2, n, 4] = Slice@13(X, zero, half, last)
%high: f16[b, 2, n, 4] = Slice@13(X, half, size, last)
%negative: f16[b, 2, n, 4] = Neg(%high)
%turned: f16[b, 2, n, 8] = Concat(%negative, %low) {axis = -1}
%by_sin: f16[b, 2, n, 8] = Mul(%turned, sin)
%: f16[b, 2, n, 8] = Add(%plain, %by_sin)  # "% is rotated"
)";
  const std::string named = std::regex_replace(kSpelled, std::regex("%"), name);
  return std::regex_replace(std::regex_replace(named, std::regex("X"), x), std::regex("COS"), cos);
}

constexpr const char* kTables = R"(in cos: f16[n, 8]
in sin: f16[n, 8]
)";
constexpr const char* kParts = R"(const zero: i64[1] = [0]
const half: i64[1] = [4]
const size: i64[1] = [8]
const last: i64[1] = [3]
)";

std::string joined(const std::string& text) {
  Plan plan = plan_from(text);
  for (const char* name : {"rotations", "rotation_pairs"})
    run(*std::ranges::find(passes(), std::string_view(name), &Pass::name), plan);
  return text_of(plan);
}

size_t rotations_of(const std::string& text) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find("encore.Rotation(", at)) != text.npos; ++at) ++count;
  return count;
}

std::string two(const std::string& between = "", const std::string& x = "y") {
  return std::string("in x: f16[b, 2, n, 8]\nin y: f16[b, 2, n, 8]\n") + kTables + kParts + rotation("q", "x") +
         between + rotation("k", x) + "out q\nout k\n";
}

TEST(RotationPairs, OneStepHasTwoResults) {
  EXPECT_EQ(joined(two()), std::string("in x: f16[b, 2, n, 8]\nin y: f16[b, 2, n, 8]\n") + kTables +
                               R"(q: f16[b, 2, n, 8], k: f16[b, 2, n, 8] = encore.Rotation(x, cos, sin, _, y) {)"
                               R"(other_x = "", other_y = [0, 1, 2, 3], x = "", y = [0, 1, 2, 3]})"
                               R"(  # "q is rotated and k is rotated"
out q
out k
)");
}

TEST(RotationPairs, EachHasItsNorm) {
  constexpr const char* kNorm = "normed: f16[b, 2, n, 8] = RMSNormalization(y, gamma) {epsilon = 0.5}\n";
  const std::string text = replaced(two(kNorm, "normed"), "const zero", "const gamma: f16[8]\nconst zero");
  const std::string made = joined(text);
  EXPECT_NE(made.find("encore.Rotation(x, cos, sin, _, y, gamma) {other_epsilon = 0.5, "), made.npos) << made;
}

TEST(RotationPairs, NeighboursAndHalvesStayApart) {
  const std::string pairs = R"(const ones: i64[1] = [1]
const twos: i64[1] = [2]
const behind: i64[1] = [4]
const all: i64[4] = [0, 0, 0, 8]
even: f16[b, 2, n, 4] = Slice@13(y, zero, size, last, twos)
odd: f16[b, 2, n, 4] = Slice@13(y, ones, size, last, twos)
other: f16[b, 2, n, 4] = Neg(odd)
first: f16[b, 2, n, 4, 1] = Unsqueeze(other, behind)
second: f16[b, 2, n, 4, 1] = Unsqueeze(even, behind)
both: f16[b, 2, n, 4, 2] = Concat(first, second) {axis = -1}
turned: f16[b, 2, n, 8] = Reshape(both, all)
)";
  const std::string text = replaced(replaced(two(pairs), "Mul(kturned, sin)", "Mul(turned, sin)"),
                                    "kturned: f16[b, 2, n, 8] = Concat(knegative, klow) {axis = -1}\n", "");
  const std::string made = joined(text);
  EXPECT_EQ(rotations_of(made), 2u) << made;
  EXPECT_NE(made.find("interleaved = 1"), made.npos) << made;
}

TEST(RotationPairs, OfTheSameHeads) {
  const std::string made = joined(two("", "x"));
  EXPECT_NE(made.find("encore.Rotation(x, cos, sin, _, x)"), made.npos) << made;
}

TEST(RotationPairs, StayApartWhereOneWaitsForTheOther) {
  EXPECT_EQ(rotations_of(joined(two("", "q"))), 2u);
  EXPECT_EQ(rotations_of(joined(two("z: f16[b, 2, n, 8] = Relu(q)\n", "z"))), 2u);
}

TEST(RotationPairs, WhoReadsTheFirstComesBehindBoth) {
  const std::string made = joined(replaced(two("z: f16[b, 2, n, 8] = Relu(q)\n"), "out q", "out z"));
  EXPECT_EQ(rotations_of(made), 1u);
  EXPECT_LT(made.find("encore.Rotation("), made.find("Relu(q)")) << made;
}

// A layer's pair waits for the one before.
TEST(RotationPairs, LayerByLayer) {
  std::string text = replaced(two("", "x"), "out q\nout k\n", "");
  text += "z: f16[b, 2, n, 8] = Add(q, k)\n" + rotation("q2", "z") + rotation("k2", "z") + "out q2\nout k2\n";
  const std::string made = joined(text);
  EXPECT_EQ(rotations_of(made), 2u);
  EXPECT_NE(made.find("encore.Rotation(z, cos, sin, _, z)"), made.npos) << made;
}

// Once two are one, what waits for the one waits for the other, too.
TEST(RotationPairs, NoPairWaitsForItself) {
  const std::string heads = "f16[b, 2, n, 8]";
  std::string text = "in x: " + heads + "\nin y: " + heads + "\nin cos2: f16[n, 8]\n" + kTables + kParts;
  text += rotation("a", "x") + rotation("c", "y", "cos2") + "after_a: " + heads + " = Relu(a)\n";
  text += "after_c: " + heads + " = Relu(c)\n" + rotation("b", "after_c") + rotation("d", "after_a", "cos2");
  EXPECT_EQ(rotations_of(joined(text + "out b\nout d\n")), 3u);
}

// Halves may be rotated in floats.
TEST(RotationPairs, OfTwoTypesStayApart) {
  std::string text = std::regex_replace(two("w: f16[b, 2, n, 8] = Cast(y) {to = 1}\n", "w"), std::regex("f16"), "f32");
  text = replaced(replaced(text, "in y: f32", "in y: f16"), "out k\n", "");
  text += "narrow: f16[b, 2, n, 8] = Cast(k) {to = 10}\nout narrow\n";
  EXPECT_EQ(rotations_of(joined(text)), 2u) << joined(text);
}

TEST(RotationPairs, StayApartOtherwise) {
  const auto apart = [](const std::string& text) { EXPECT_EQ(rotations_of(joined(text)), 2u) << joined(text); };
  apart(replaced(replaced(two(), "Mul(y, cos)", "Mul(y, cos2)"), "in cos:", "in cos2: f16[n, 8]\nin cos:"));
  apart(replaced(replaced(two(), "Mul(kturned, sin)", "Mul(kturned, sin2)"), "in cos:", "in sin2: f16[n, 8]\nin cos:"));
  apart(replaced(two(), "Mul(y, cos)", "Mul(y, sin)"));
}

}  // namespace
}  // namespace encore::fuse::tests
