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

constexpr const char* kTanh = R"(in x: f32[n, 4]
const three: f32[] = 3.0
const c: f32[] = 0.044715
const root: f32[] = 0.7978846
const one: f32[] = 1.0
const half: f32[] = 0.5
cube: f32[n, 4] = Pow(x, three)
d: f32[n, 4] = Mul(cube, c)
e: f32[n, 4] = Add(x, d)
f: f32[n, 4] = Mul(e, root)
t: f32[n, 4] = Tanh(f)
s: f32[n, 4] = Add(t, one)
h: f32[n, 4] = Mul(x, half)
y: f32[n, 4] = Mul(h, s)  # "last"
out y
)";

TEST(TanhGelu, EightNodesAreOne) {
  const char* const fast = "in x: f32[n, 4]\ny: f32[n, 4] = com.microsoft.FastGelu(x)  # \"last\"\nout y\n";
  EXPECT_EQ(after("tanh_gelu", kTanh), fast);
  EXPECT_EQ(after("tanh_gelu",
                  replaced(kTanh, "cube: f32[n, 4] = Pow(x, three)", "q = Mul(x, x)\ncube: f32[n, 4] = Mul(q, x)")),
            fast);
}

constexpr const char* kFactored = R"(in x: f16[n, 4]
const one: f16[] = 1.0
const half: f16[] = 0.5
const cubic: f16[] = 0.044715
const outer: f16[] = 0.7978846
a: f16[n, 4] = Mul(x, cubic)
b: f16[n, 4] = Mul(a, x)
c: f16[n, 4] = Add(b, one)
d: f16[n, 4] = Mul(x, outer)
e: f16[n, 4] = Mul(d, c)
f: f16[n, 4] = Tanh(e)
g: f16[n, 4] = Add(f, one)
h: f16[n, 4] = Mul(x, half)
y: f16[n, 4] = Mul(h, g)  # "last"
out y
)";

TEST(TanhGelu, OrTheFactorsOfThePolynomial) {
  const char* const fast = "y: f16[n, 4] = com.microsoft.FastGelu(x)  # \"last\"";
  const auto is_joined = [&](const std::string& text) {
    const std::string made = after("tanh_gelu", text);
    EXPECT_NE(made.find(fast), made.npos) << made;
  };
  is_joined(kFactored);
  is_joined(replaced(kFactored, "Mul(d, c)", "Mul(c, d)"));
  is_joined(replaced(kFactored, "Add(b, one)", "Add(one, b)"));
  is_joined(replaced(replaced(kFactored, "Mul(x, cubic)", "Mul(x, x)"), "Mul(a, x)", "Mul(cubic, a)"));
  const auto stays = [](const char* part, const char* by) { expect_stays("tanh_gelu", kFactored, part, by); };
  stays("0.044715", "0.0457");
  stays("0.7978846", "0.81");
  stays("Add(b, one)", "Add(b, half)");
  stays("Mul(a, x)", "Mul(a, a)");
  stays("b: f16[n, 4] = Mul(a, x)", "z = Relu(x)\nb: f16[n, 4] = Mul(a, z)");
  stays("Mul(x, cubic)", "Mul(outer, cubic)");
  stays("out y", "out y\nout b");
  stays("out y", "out y\nout c");
  stays("out y", "out y\nout d");
  stays("out y", "out y\nout e");
}

TEST(TanhGelu, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("tanh_gelu", kTanh, part, by); };
  stays("3.0", "2.0");
  stays("0.044715", "0.0447");
  stays("0.7978846", "0.798");
  stays("Add(x, d)", "Add(cube, d)");
  stays("Mul(x, half)", "Mul(e, half)");
  stays("f: f32", "f: f64");
  stays("out y", "out y\nout cube");
  stays("out y", "out y\nout e");
  stays("out y", "out y\nout d");
  stays("cube: f32[n, 4] = Pow(x, three)", "q = Mul(x, x)\nr = Relu(q)\ncube: f32[n, 4] = Mul(q, x)");
}

constexpr const char* kQuick = R"(in x: f16[n, 4]
const a: f16[] = 1.5
b: f16[n, 4] = Mul(x, a)
s: f16[n, 4] = Sigmoid(b)
y: f16[n, 4] = Mul(s, x)  # "last"
out y
)";

TEST(QuickGelu, IsOneNode) {
  EXPECT_EQ(after("quick_gelu", kQuick),
            "in x: f16[n, 4]\ny: f16[n, 4] = com.microsoft.QuickGelu(x) {alpha = 1.5}  # \"last\"\nout y\n");
  EXPECT_EQ(after("quick_gelu", "in x: f16[n]\ns: f16[n] = Sigmoid(x)\ny: f16[n] = Mul(x, s)\nout y\n"),
            "in x: f16[n]\ny: f16[n] = com.microsoft.QuickGelu(x) {alpha = 1.0}\nout y\n");
}

TEST(QuickGelu, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("quick_gelu", kQuick, part, by); };
  stays("Mul(s, x)", "Mul(s, s)");
  stays("y: f16", "z = Relu(b)\ny: f16");
  stays("s: f16", "s: f64");
  stays("out y", "out y\nout s");
  stays("out y", "out y\nout b");
}

constexpr const char* kBias = R"(in x: f16[n, 4]
const b: f16[4]
a: f16[n, 4] = Add(b, x)  # "sum"
y: f16[n, 4] = Gelu(a)  # "gelu"
out y
)";

TEST(BiasGelu, TakesTheSumAlong) {
  const std::string made =
      "in x: f16[n, 4]\nconst b: f16[4]\ny: f16[n, 4] = com.microsoft.BiasGelu(x, b)  # \"sum and gelu\"\nout y\n";
  EXPECT_EQ(after("bias_gelu", kBias), made);
  EXPECT_EQ(after("bias_gelu", replaced(kBias, "Gelu", "com.microsoft.FastGelu")),
            replaced(made, "BiasGelu", "FastGelu"));
}

TEST(BiasGelu, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("bias_gelu", kBias, part, by); };
  stays("const b", "in b");
  stays("b: f16[4]", "b: f16[1]");
  stays("b: f16[4]", "b: f16[1, 4]");
  stays("Gelu(a)", "Gelu(a) {approximate = \"tanh\"}");
  stays("Add(", "Add@6(");
  stays("out y", "out y\nout a");
  stays("a: f16[n, 4] = Add(b, x)", "t: f16[n, 4] = Tanh(x)\na: f16[n, 4] = Add(b, t)");
}

}  // namespace
}  // namespace encore::fuse::tests
