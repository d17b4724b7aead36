#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// What a dual path network does: one part is added to, others are kept.
constexpr const char* kCut = R"(in x: f16[n, 24]
in z: f16[n, 8]
const sizes: i64[2] = [8, 16]
a: f16[n, 8], b: f16[n, 16] = Split(x, sizes) {axis = -1}
c: f16[n, 8] = Softmax(a)
j: f16[n, 32] = Concat(c, b, z) {axis = -1}  # "join"
out j
)";

TEST(JoinedCuts, AreReadWhereTheyAre) {
  EXPECT_EQ(after("joined_cuts", kCut), R"(in x: f16[n, 24]
in z: f16[n, 8]
const sizes: i64[2] = [8, 16]
a: f16[n, 8], _ = Split(x, sizes) {axis = -1}
c: f16[n, 8] = Softmax(a)
j: f16[n, 32] = encore.JoinedCuts(c, x, z) {axis = -1, begins = [0, 8, 0], ends = [-1, 24, -1]}  # "join"
out j
)");
}

TEST(JoinedCuts, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("joined_cuts", kCut, part, by); };
  stays("out j", "out j\nout b");
  stays("out j", "d: f16[n, 16] = Relu(b)\nout d\nout j");
  stays("in x: f16[n, 24]", "in x: f16[n, m]");
  const std::string rows =
      replaced(replaced(kCut, "(c, b, z) {axis = -1}", "(b, b) {axis = 0}"), "f16[n, 32]", "f16[m, 16]");
  EXPECT_EQ(after("joined_cuts", rows), text_of(plan_from(rows)));
}

TEST(JoinedCuts, OfProgramsAreParts) {
  const std::string made =
      after("elementwise", replaced(kCut, "out j", "s: f16[n, 32] = Sigmoid(j)\nt: f16[n, 32] = Mul(j, s)\nout t"));
  EXPECT_NE(
      made.find("= encore.Elementwise(c, x, z) {expression = \"join x0 to x2 along -1; part x1 along -1 from 8 to "
                "24; v0: float16 = sigmoid(x0); v1: float16 = mul(x0, v0); out v1\"}"),
      made.npos)
      << made;
}

constexpr const char* kAgain = R"(in a: f16[n, 8]
in b: f16[n, 16]
in c: f16[n, 24]
in d: f16[n, 4]
const sizes: i64[2] = [8, 40]
j: f16[n, 48] = Concat(a, b, c) {axis = 1}
e: f16[n, 8], f: f16[n, 40] = Split(j, sizes) {axis = 1}
g: f16[n, 8] = Softmax(e)
k: f16[n, 52] = Concat(g, f, d) {axis = 1}
out k
)";

TEST(Pieces, AreThoseThatWereJoined) {
  EXPECT_EQ(after("pieces", kAgain), R"(in a: f16[n, 8]
in b: f16[n, 16]
in c: f16[n, 24]
in d: f16[n, 4]
g: f16[n, 8] = Softmax(a)
k: f16[n, 52] = Concat(g, b, c, d) {axis = 1}
out k
)");
  // Who joins them twice, and all of them.
  const std::string twice = after("pieces", replaced(kAgain, "Concat(g, f, d)", "Concat(f, g, f)"));
  EXPECT_NE(twice.find("Concat(b, c, g, b, c)"), twice.npos) << twice;
}

TEST(Pieces, OthersAreCut) {
  // Where no piece begins, or where several are read by another step.
  const std::string elsewhere =
      replaced(replaced(kAgain, "[8, 40]", "[4, 44]"), "e: f16[n, 8], f: f16[n, 40]", "e: f16[n, 4], f: f16[n, 44]");
  EXPECT_EQ(after("pieces", elsewhere), text_of(plan_from(elsewhere)));
  const std::string read = after("pieces", replaced(kAgain, "out k", "out k\nout f"));
  EXPECT_NE(read.find("_, f: f16[n, 40] = Split(j, sizes)"), read.npos) << read;
  const std::string along =
      replaced(kAgain, "j: f16[n, 48] = Concat(a, b, c) {axis = 1}", "j: f16[n, 48] = Concat(a, b, c) {axis = 0}");
  EXPECT_EQ(after("pieces", along), text_of(plan_from(along)));
}

}  // namespace
}  // namespace encore::fuse::tests
