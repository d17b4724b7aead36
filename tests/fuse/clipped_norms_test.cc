#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// What T5 does to a sum in halves, and the norm behind.
constexpr const char* kClipped = R"(in x: f16[b, n, 64]
in w: f16[n, 64]
const less: f32[] = 64504
const most: f32[] = 65504
const scale: f16[64]
is: bool[] = encore.Any(x) {keepdims = 0, nan = 0}  # "any"
limit: f32[] = Where(is, less, most)
negative: f32[] = Neg(limit)
low: f16[] = Cast(negative) {to = 10}
high: f16[] = Cast(limit) {to = 10}
c: f16[b, n, 64] = Clip(x, low, high)  # "clip"
y: f16[b, n, 64] = RMSNormalization(c, scale) {epsilon = 0.001}  # "norm"
out c
out y
)";

TEST(ClippedNorms, AskByThemselves) {
  EXPECT_EQ(after("clipped_norms", kClipped), R"(in x: f16[b, n, 64]
in w: f16[n, 64]
const scale: f16[64]
y: f16[b, n, 64], c: f16[b, n, 64] = encore.ClippedNorm(x, scale, _) {bounds = [-64512.0, 64512.0, -65504.0, 65504.0], centred = 0, epsilon = 0.001}  # "any and clip and norm"
out c
out y
)");
}

TEST(ClippedNorms, ReadWhatOthersReadToo) {
  const std::string made = after("clipped_norms", replaced(kClipped, "out c", "out is"));
  EXPECT_NE(made.find("is: bool[] = encore.Any(x)"), made.npos) << made;
  EXPECT_NE(made.find("y: f16[b, n, 64], _ = encore.ClippedNorm(x, scale, _, is)"), made.npos) << made;
  const std::string other = after("clipped_norms", "in z: f16[b]\n" + replaced(kClipped, "Any(x)", "Any(z)"));
  EXPECT_NE(other.find("encore.ClippedNorm(x, scale, _, is)"), other.npos) << other;
  for (const char* const of : {"nan = 1", "nan = 0, detect_negative = 0", "nan = 0, detect_positive = 0"}) {
    const std::string odd = after("clipped_norms", replaced(kClipped, "nan = 0", of));
    EXPECT_NE(odd.find("encore.ClippedNorm(x, scale, _, is)"), odd.npos) << odd;
  }
}

TEST(ClippedNorms, BoundsAreSpelledOtherwise) {
  const std::string all = after("clipped_norms", kClipped);
  const std::string two = replaced(kClipped, "c: f16[b, n, 64] = Clip(x, low, high)",
                                   "m: f16[b, n, 64] = Max(x, low)  # \"at least\"\nc: f16[b, n, 64] = Min(m, high)");
  EXPECT_EQ(after("clipped_norms", two), all);
  const std::string turned = replaced(replaced(two, "Max(x, low)", "Min(high, x)"), "Min(m, high)", "Max(low, m)");
  EXPECT_EQ(after("clipped_norms", turned), all);
  // One of both may be a constant, and a number may be chosen in halves.
  const std::string one = after("clipped_norms", replaced(replaced(kClipped, "Clip(x, low, high)", "Clip(x, low, far)"),
                                                          "const scale", "const far: f16[] = 65000\nconst scale"));
  EXPECT_NE(one.find("bounds = [-64512.0, 64992.0, -65504.0, 64992.0]"), one.npos) << one;
}

TEST(ClippedNorms, Centred) {
  const std::string made = after(
      "clipped_norms", replaced(replaced(kClipped, "RMSNormalization(c, scale)", "LayerNormalization(c, scale, bias)"),
                                "const scale", "const bias: f16[64]\nconst scale"));
  EXPECT_NE(made.find("encore.ClippedNorm(x, scale, bias) {"), made.npos) << made;
  EXPECT_NE(made.find("centred = 1"), made.npos) << made;
}

TEST(ClippedNorms, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("clipped_norms", kClipped, part, by); };
  stays("const less: f32[] = 64504", "in less: f32[]");
  stays("const less: f32[] = 64504", "const less: f32[] = -1");  // the lower bound would be above
  stays("Neg(limit)", "Abs(limit)");
  stays("Clip(x, low, high)", "Clip(x, low)");
  stays("Clip(x, low, high)", "Clip(x, low, x)");
  stays("is: bool[] = encore.Any(x)", "is: bool[n, 64] = IsInf(w)\nt: bool[] = encore.Any(x)");
  stays("RMSNormalization(c, scale)", "RMSNormalization(c, c)");
  stays("Norm", "N");  // no norm
}

TEST(ClippedNorms, SayWhyTheyStay) {
  const std::string unknown = replaced(kClipped, "in x: f16[b, n, 64]", "in x: f16[b, m, 64]");
  EXPECT_EQ(notes_of("clipped_norms", unknown),
            Notes{"RMSNormalization node 'norm' does not become a norm: what is clipped may have another shape"});
}

TEST(ClippedNorms, OfConstantBoundsStay) {
  expect_stays("clipped_norms",
               replaced(kClipped, "const less", "const bottom: f16[] = -1\nconst top: f16[] = 1\nconst less"),
               "Clip(x, low, high)", "Clip(x, bottom, top)");
}

}  // namespace
}  // namespace encore::fuse::tests
