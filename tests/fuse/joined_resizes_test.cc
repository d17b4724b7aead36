#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kJoined = R"(in a: f16[n, 4, 4, 64]
in b: f16[n, 8, 8, 64]
in c: f16[n, h, w, 32]
const by_four: f32[4] = [1.0, 4.0, 4.0, 1.0]
const sizes: i64[4] = [1, 16, 16, 64]
up: f16[n, 16, 16, 64] = Resize@19(a, _, by_four) {mode = "linear"}  # "up"
down: f16[n, 16, 16, 64] = Resize@19(b, _, _, sizes)
y: f16[n, 16, 16, 160] = Concat@13(up, c, down) {axis = -1}  # "joined"
out y
)";

TEST(JoinedResizes, AreMadeWhereTheyBelong) {
  EXPECT_EQ(after("joined_resizes", kJoined), R"(in a: f16[n, 4, 4, 64]
in b: f16[n, 8, 8, 64]
in c: f16[n, h, w, 32]
y: f16[n, 16, 16, 160] = encore.JoinedResizes(a, c, b) {resized = [0, 2]}  # "up and joined"
out y
)");
}

TEST(JoinedResizes, AreThoseThatNobodyElseReads) {
  const auto made = [](const char* part, const char* by) {
    return after("joined_resizes", replaced(kJoined, part, by));
  };
  const auto joins = [](const std::string& text, const char* what) { EXPECT_NE(text.find(what), text.npos) << text; };
  joins(made("out y", "out y\nout up"), "JoinedResizes(up, c, b) {resized = [2]}");
  joins(made("out y", "z: f16[n, 16, 16, 64] = Relu(down)\nout y\nout z"), "JoinedResizes(a, c, down) {resized = [0]}");
  joins(made("(up, c, down)", "(up, up, down)"), "JoinedResizes(up, up, b) {resized = [2]}");
  joins(made("const sizes: i64[4] = [1, 16, 16, 64]", "in sizes: i64[4]"), "(a, c, down) {resized = [0]}");
  joins(made("down: f16", "host down: f16"), "JoinedResizes(a, c, down) {resized = [0]}");
}

TEST(JoinedResizes, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("joined_resizes", kJoined, part, by); };
  stays("axis = -1", "axis = 1");
  stays("axis = -1", "axis = 4");
  stays("{axis = -1}  # \"joined\"", " # \"joined\"");
  stays("y: f16[n, 16, 16, 160]", "y: f16");
  stays("y: f16[n, 16, 16, 160] =", "host y: f16[n, 16, 16, 160] =");
  stays("(up, c, down)", "(up, up, down, down)");
  stays("out y", "out y\nout up\nout down");
}

}  // namespace
}  // namespace encore::fuse::tests
