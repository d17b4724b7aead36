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

TEST(Clips, ByOneBoundAreOne) {
  EXPECT_NE(after("clips", replaced(kClip, "Clip(a, low, high)", "Clip(a, low)")).find("c: f16[n, 8] = Max(low, a)"),
            std::string::npos);
  EXPECT_NE(
      after("clips", replaced(kClip, "Clip(a, low, high)", "Clip(a, _, high)")).find("c: f16[n, 8] = Min(high, a)"),
      std::string::npos);
}

TEST(Clips, StayByThemselves) {
  const std::string alone = replaced(replaced(kClip, "Add(x, three)", "Softmax(x)"), "Mul(x, c)", "MatMul(x, c)");
  EXPECT_EQ(after("clips", alone), text_of(plan_from(alone)));
  expect_stays("clips", kClip, "Clip(a, low, high)", "Clip(a)");
  expect_stays("clips", kClip, "Clip(a, low, high)", "Clip@6(a)");
}

}  // namespace
}  // namespace encore::fuse::tests
