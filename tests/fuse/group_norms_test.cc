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

// Of each channel, in a line; the other Reshape has been found to do nothing before.
TEST(GroupNorms, OfEachChannel) {
  constexpr const char* kLine = R"(in x: f16[n, 2, 8]
const shape: i64[3] = [0, 2, -1]
const ones: f16[2] = [1.0, 1.0]
const zeros: f16[2] = [0.0, 0.0]
const g: f16[2, 1] = [1.0, 2.0]
const b: f16[2, 1] = [5.0, 6.0]
r: f16[n, 2, 8] = Reshape(x, shape)
i: f16[n, 2, 8] = InstanceNormalization(r, ones, zeros) {epsilon = 0.25}  # "norm"
m: f16[n, 2, 8] = Mul(i, g)
y: f16[n, 2, 8] = Add(m, b)
out y
)";
  constexpr const char* kOne = R"(in x: f16[n, 2, 8]
const g: f16[2] = [1.0, 2.0]
const b: f16[2] = [5.0, 6.0]
y: f16[n, 2, 8] = GroupNormalization(x, g, b) {epsilon = 0.25, num_groups = 2}  # "norm"
out y
)";
  EXPECT_EQ(after("group_norms", kLine), kOne);
  EXPECT_EQ(after("group_norms", replaced(replaced(kLine, "r: f16[n, 2, 8] = Reshape(x, shape)\n", ""),
                                          "InstanceNormalization(r", "InstanceNormalization(x")),
            kOne);
  expect_stays("group_norms", kLine, "ones: f16[2] = [1.0, 1.0]", "ones: f16[2] = [1.0, 2.0]");
  expect_stays("group_norms", kLine, "in x: f16[n, 2, 8]", "in x: f16");
}

TEST(GroupNorms, ChannelsLastTakeActivationsAlong) {
  constexpr const char* kLast = R"(in x: f16[n, 6, 6, 4]
const g: f16[4]
const b: f16[4]
z: f16[n, 6, 6, 4] = com.microsoft.GroupNorm(x, g, b) {epsilon = 0.25, groups = 2}  # "norm"
s: f16[n, 6, 6, 4] = Sigmoid(z)
y: f16[n, 6, 6, 4] = Mul(z, s)
out y
)";
  constexpr const char* kEnds =
      "y: f16[n, 6, 6, 4] = com.microsoft.GroupNorm(x, g, b) {ending = \"Silu\", ending_params = [], epsilon = 0.25";
  const std::string made = after("group_norm_activations", kLast);
  EXPECT_NE(made.find(kEnds), made.npos) << made;
  expect_stays("group_norm_activations", kLast, "out y", "out y\nout z");
  const std::string gelu = replaced(replaced(kLast, "s: f16[n, 6, 6, 4] = Sigmoid(z)\n", ""), "Mul(z, s)", "Gelu(z)");
  EXPECT_NE(after("group_norm_activations", gelu).find("{ending = \"Gelu\""), gelu.npos);
  std::string floats = gelu;
  for (size_t at = 0; (at = floats.find("f16", at)) != floats.npos; at += 3) floats.replace(at, 3, "f32");
  EXPECT_EQ(after("group_norm_activations", floats), text_of(plan_from(floats)));
}

}  // namespace
}  // namespace encore::fuse::tests
