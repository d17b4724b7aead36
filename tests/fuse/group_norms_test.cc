#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kSpelled = R"(in x: f16[n, 4, 6, 6]
const shape: i64[3] = [0, 2, -1]
const ones: f16[2] = [1.0, 1.0]
const zeros: f16[2] = [0.0, 0.0]
const back: i64[4] = [0, 4, 6, 6]
const g: f16[4, 1, 1] = [1.0, 2.0, 3.0, 4.0]
const b: f16[4, 1, 1] = [5.0, 6.0, 7.0, 8.0]
r: f16[n, 2, 72] = Reshape(x, shape)
i: f16[n, 2, 72] = InstanceNormalization(r, ones, zeros) {epsilon = 0.25}  # "norm"
o: f16[n, 4, 6, 6] = Reshape(i, back)
m: f16[n, 4, 6, 6] = Mul(o, g)
y: f16[n, 4, 6, 6] = Add(m, b)
out y
)";

TEST(GroupNorms, AreOne) {
  EXPECT_EQ(after("group_norms", kSpelled), R"(in x: f16[n, 4, 6, 6]
const g: f16[4] = [1.0, 2.0, 3.0, 4.0]
const b: f16[4] = [5.0, 6.0, 7.0, 8.0]
y: f16[n, 4, 6, 6] = GroupNormalization(x, g, b) {epsilon = 0.25, num_groups = 2}  # "norm"
out y
)");
}

TEST(GroupNorms, WithoutWhatIsPutOnChannels) {
  const std::string made =
      after("group_norms", replaced(replaced(kSpelled, "m: f16[n, 4, 6, 6] = Mul(o, g)\n", ""), "Add(m, b)", "Exp(o)"));
  EXPECT_NE(made.find("f16[4] = [1.0, 1.0, 1.0, 1.0]"), made.npos) << made;
  EXPECT_NE(made.find("f16[4] = [0.0, 0.0, 0.0, 0.0]"), made.npos) << made;
  EXPECT_NE(made.find("y: f16[n, 4, 6, 6] = Exp(o)"), made.npos) << made;
}

TEST(GroupNorms, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("group_norms", kSpelled, part, by); };
  stays("ones: f16[2] = [1.0, 1.0]", "ones: f16[2] = [1.0, 2.0]");
  stays("zeros: f16[2] = [0.0, 0.0]", "zeros: f16[2] = [0.0, 0.5]");
  stays("o: f16[n, 4, 6, 6] = Reshape(i, back)", "o: f16[n, 4, 4, 9] = Reshape(i, back)");
  stays("out y", "out y\nout i");
  stays("out y", "out y\nout r");
  stays("in x: f16[n, 4, 6, 6]", "in x: f16");
}

TEST(GroupNorms, ChannelsLastTakeSiluAlong) {
  constexpr const char* kLast = R"(in x: f16[n, 6, 6, 4]
const g: f16[4]
const b: f16[4]
z: f16[n, 6, 6, 4] = com.microsoft.GroupNorm(x, g, b) {epsilon = 0.25, groups = 2}  # "norm"
s: f16[n, 6, 6, 4] = Sigmoid(z)
y: f16[n, 6, 6, 4] = Mul(z, s)
out y
)";
  const std::string made = after("group_norms_and_silu", kLast);
  EXPECT_NE(made.find("y: f16[n, 6, 6, 4] = com.microsoft.GroupNorm(x, g, b) {activation = 1, epsilon = 0.25"),
            made.npos)
      << made;
  expect_stays("group_norms_and_silu", kLast, "out y", "out y\nout z");
}

}  // namespace
}  // namespace encore::fuse::tests
