#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// x * clip(x + 3, 0, 6)
constexpr const char* kClip = R"(in x: f16[n, 8]
const three: f16[] = 3
const low: f16[] = 0
const high: f16[] = 6
a: f16[n, 8] = Add(x, three)
c: f16[n, 8] = Clip(a, low, high)  # "clip"
y: f16[n, 8] = Mul(x, c)
out y
)";

TEST(Clips, AreTwoSteps) {
  EXPECT_EQ(after("clips", kClip), R"(in x: f16[n, 8]
const three: f16[] = 3.0
const low: f16[] = 0.0
const high: f16[] = 6.0
a: f16[n, 8] = Add(x, three)
"a at least low": f16[n, 8] = Max(low, a)  # "clip"
c: f16[n, 8] = Min(high, "a at least low")  # "clip"
y: f16[n, 8] = Mul(x, c)
out y
)");
}

// Infinity is clipped where there is no bound, too.
TEST(Clips, HaveTheLargestNumberInPlaceOfABound) {
  const std::string above = after("clips", replaced(kClip, "Clip(a, low, high)", "Clip(a, low)"));
  EXPECT_NE(above.find("const \"the largest\": f16[] = 65504.0"), std::string::npos) << above;
  EXPECT_NE(above.find("c: f16[n, 8] = Min(\"the largest\", \"a at least low\")"), std::string::npos) << above;
  const std::string below = after("clips", replaced(kClip, "Clip(a, low, high)", "Clip(a, _, high)"));
  EXPECT_NE(below.find("const \"the least\": f16[] = -65504.0"), std::string::npos) << below;
  EXPECT_NE(below.find("= Max(\"the least\", a)"), std::string::npos) << below;
}

TEST(Clips, OfIntegersHaveNoOtherBounds) {
  const std::string text = R"(in x: i64[n]
const low: i64[] = 0
const high: i64[] = 6
a: i64[n] = Neg(x)
y: i64[n] = Clip(a, low, high)
out y
)";
  const std::string both = after("clips", text);
  EXPECT_NE(both.find("y: i64[n] = Min(high, \"a at least low\")"), both.npos) << both;
  const std::string above = after("clips", replaced(text, "low, high)", "low)"));
  EXPECT_NE(above.find("y: i64[n] = Max(low, a)"), above.npos) << above;
  const std::string below = after("clips", replaced(text, "low, high)", "_, high)"));
  EXPECT_NE(below.find("y: i64[n] = Min(high, a)"), below.npos) << below;
}

TEST(Clips, StayByThemselves) {
  const std::string alone = replaced(replaced(kClip, "Add(x, three)", "Softmax(x)"), "Mul(x, c)", "MatMul(x, c)");
  EXPECT_EQ(after("clips", alone), text_of(plan_from(alone)));
  expect_stays("clips", kClip, "Clip(a, low, high)", "Clip(a)");
  expect_stays("clips", kClip, "Clip(a, low, high)", "Clip@6(a)");
}

}  // namespace
}  // namespace encore::fuse::tests
