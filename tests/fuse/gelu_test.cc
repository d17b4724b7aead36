#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kSpelled = R"(in x: f32[n, 4]
const root: f32[1] = [1.4142135]
const one: f32[1] = [1.0]
const half: f32[1] = [0.5]
d: f32[n, 4] = Div(x, root)
e: f32[n, 4] = Erf(d)
s: f32[n, 4] = Add(e, one)
p: f32[n, 4] = Mul(x, s)
y: f32[n, 4] = Mul(p, half)  # "last"
out y
)";
constexpr const char* kGelu = R"(in x: f32[n, 4]
y: f32[n, 4] = Gelu(x)  # "last"
out y
)";

TEST(Gelu, FiveNodesAreOne) { EXPECT_EQ(after("gelu", kSpelled), kGelu); }

TEST(Gelu, TheHalfMayBeElsewhere) {
  EXPECT_EQ(after("gelu", replaced(replaced(kSpelled, "Mul(x, s)", "Mul(s, half)"), "Mul(p, half)", "Mul(x, p)")),
            kGelu);
  EXPECT_EQ(after("gelu", replaced(replaced(kSpelled, "Mul(x, s)", "Mul(half, x)"), "Mul(p, half)", "Mul(p, s)")),
            kGelu);
}

TEST(Gelu, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("gelu", kSpelled, part, by); };
  stays("1.4142135", "1.4143");
  stays("[1.0]", "[1.5]");
  stays("[0.5]", "[0.25]");
  stays("d: f32", "d: f64");
  stays("Mul(x, s)", "Mul(d, s)");
  stays("out y", "out y\nout s");
  stays("out y", "out y\nout p");
  stays("out y", "out y\nout d");
  stays("p: f32", "elsewhere p: f32");
  stays("const half: f32[1] = [0.5]", "const half: f32[1, 1, 1] = [0.5]");
}

}  // namespace
}  // namespace encore::fuse::tests
