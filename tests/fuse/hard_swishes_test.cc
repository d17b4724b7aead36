#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kSpelled = R"(in x: f32[n, 8]
const three: f32[1] = [3]
const low: f32[] = 0
const high: f32[] = 6
a: f32[n, 8] = Add(x, three)  # "first"
c: f32[n, 8] = Clip(a, low, high)
p: f32[n, 8] = Mul(x, c)
y: f32[n, 8] = Div(p, high)  # "last"
out y
)";

constexpr const char* kMade = "y: f32[n, 8] = HardSwish(x)  # \"first to last\"";

TEST(HardSwishes, AreOneStep) {
  EXPECT_EQ(after("hard_swishes", kSpelled),
            text_of(plan_from(std::string("in x: f32[n, 8]\n") + kMade + "\nout y\n")));
}

TEST(HardSwishes, InAnyOrder) {
  const auto is_one = [](const std::string& text) {
    const std::string made = after("hard_swishes", text);
    EXPECT_NE(made.find("HardSwish(x)"), made.npos) << made;
    EXPECT_EQ(made.find("Clip("), made.npos) << made;
  };
  const std::string sixth = "const sixth: f32[] = 0.16666667\n";
  is_one(replaced(kSpelled, "Add(x, three)", "Add(three, x)"));
  is_one(replaced(kSpelled, "Mul(x, c)", "Mul(c, x)"));
  is_one(sixth + replaced(kSpelled, "Div(p, high)", "Mul(p, sixth)"));
  is_one(replaced(replaced(kSpelled, "Mul(x, c)", "Div(c, high)"), "y: f32[n, 8] = Div(p, high)",
                  "y: f32[n, 8] = Mul(p, x)"));
  is_one(replaced(kSpelled, "Clip(a, low, high)", "Clip@6(a) {max = 6.0, min = 0.0}"));
}

TEST(HardSwishes, WithoutXAreHardSigmoids) {
  const std::string made = after(
      "hard_swishes", replaced(replaced(kSpelled, "p: f32[n, 8] = Mul(x, c)\n", ""), "Div(p, high)", "Div(c, high)"));
  EXPECT_NE(made.find("y: f32[n, 8] = HardSigmoid@6(x) {alpha = 0.16666667, beta = 0.5}"), made.npos) << made;
}

TEST(HardSwishes, OfOtherNumbersStay) {
  const auto stays = [](const char* part, const char* by) {
    const std::string made = after("hard_swishes", replaced(kSpelled, part, by));
    EXPECT_NE(made.find("Clip("), made.npos) << made;
  };
  stays("[3]", "[2.5]");
  stays("low: f32[] = 0", "low: f32[] = -1");
  stays("high: f32[] = 6", "high: f32[] = 5");
  stays("Mul(x, c)", "Mul(c, c)");
  stays("out y", "out y\nout c");
  stays("out y", "out y\nout a");
  stays("out y", "out y\nout p");
  stays("const three: f32[1] = [3]", "const three: f32[1, 8] = [3, 3, 3, 3, 3, 3, 3, 1]");
}

}  // namespace
}  // namespace encore::fuse::tests
