#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kPass = "flat_heads";

// As torch.bmm and torch.baddbmm have it.
constexpr const char* kFlat = R"(in q: f16[6, 4, 8]
in k: f16[6, 8, 5]
in v: f16[6, 5, 8]
in bias: f16[6, 1, 5]
in mask: f16[1, 1, 4, 5]
const scale: f16[] = 0.5
const heads: i64[4] = [2, 3, 4, 5]
const flat: i64[3] = [6, 4, 5]
const back: i64[4] = [2, 3, 4, 8]
s: f16[6, 4, 5] = MatMul(q, k)  # "scores"
t: f16[6, 4, 5] = Mul(s, scale)
a: f16[6, 4, 5] = Add(t, bias)
h: f16[2, 3, 4, 5] = Reshape(a, heads)
m: f16[2, 3, 4, 5] = Add(h, mask)
f: f16[6, 4, 5] = Reshape(m, flat)
p: f16[6, 4, 5] = Softmax(f) {axis = -1}
o: f16[6, 4, 8] = MatMul(p, v)  # "attended"
y: f16[2, 3, 4, 8] = Reshape(o, back)
out y
)";

TEST(FlatHeads, HaveFourDimensions) {
  const std::string made = after(kPass, kFlat);
  for (const char* step : {
           R"("q by heads": f16[2, 3, 4, 8] = Reshape(q, "q's heads"))",
           R"("k by heads": f16[2, 3, 8, 5] = Reshape(k, "k's heads"))",
           R"("v by heads": f16[2, 3, 5, 8] = Reshape(v, "v's heads"))",
           R"("bias by heads": f16[2, 3, 1, 5] = Reshape(bias, "bias's heads"))",
           R"("s by heads": f16[2, 3, 4, 5] = MatMul("q by heads", "k by heads"))",
           R"("t by heads": f16[2, 3, 4, 5] = Mul("s by heads", scale))",
           R"(h: f16[2, 3, 4, 5] = Add("t by heads", "bias by heads"))",
           R"("p by heads": f16[2, 3, 4, 5] = Softmax(m) {axis = -1})",
           R"(y: f16[2, 3, 4, 8] = MatMul("p by heads", "v by heads"))",
       })
    EXPECT_NE(made.find(step), made.npos) << step << " in\n" << made;
}

TEST(FlatHeads, AreAttention) {
  std::string text = replaced(kFlat, "a: f16[6, 4, 5] = Add(t, bias)\n", "");
  text = replaced(replaced(text, "in bias: f16[6, 1, 5]\n", ""), "Reshape(a, heads)", "Reshape(t, heads)");
  Plan plan = plan_from(text);
  rewrite(plan, {});
  const std::string made = text_of(plan);
  EXPECT_NE(made.find("encore.Attention(q, k, v, mask)"), made.npos) << made;
}

constexpr const char* kScores = R"(in q: f16[6, 4, 8]
in k: f16[6, 8, 5]
in bias: f16[6, 1, 5]
const heads: i64[4] = [2, 3, 4, 5]
s: f16[6, 4, 5] = MatMul(q, k)
a: f16[6, 4, 5] = Add(s, bias)
h: f16[2, 3, 4, 5] = Reshape(a, heads)
p: f16[2, 3, 4, 5] = Softmax(h) {axis = -1}
out p
)";

TEST(FlatHeads, OneDimensionMayBeUnknown) {
  std::string text = kScores;
  for (const char* name : {"q", "k", "bias"})
    text = replaced(text, std::string("in ") + name + ": f16[6", std::string("in ") + name + ": f16[m");
  for (const char* name : {"s", "a"})
    text = replaced(text, std::string("\n") + name + ": f16[6", std::string("\n") + name + ": f16[m");
  for (const char* name : {"h", "p"})
    text = replaced(text, std::string("\n") + name + ": f16[2", std::string("\n") + name + ": f16[b");
  const std::string made = after(kPass, replaced(text, "[2, 3, 4, 5]", "[-1, 3, 4, 5]"));
  EXPECT_NE(made.find(R"(const "q's heads": i64[4] = [-1, 3, 4, 8])"), made.npos) << made;
  EXPECT_NE(made.find(R"("s by heads": f16[b, 3, 4, 5] = MatMul("q by heads", "k by heads"))"), made.npos) << made;
}

TEST(FlatHeads, StayOtherwise) {
  EXPECT_NE(after(kPass, kScores), text_of(plan_from(kScores)));
  const auto stays = [&](const char* part, const char* by) { expect_stays(kPass, kScores, part, by); };
  stays("Softmax(h) {axis = -1}", "Relu(h)");
  stays("out p", "out p\nout s");
  stays("out p", "out p\nout a");
  stays("MatMul(q, k)", "Mul(q, k)");
  stays("in q: f16[6, 4, 8]", "in q: f16[n, 4, 8]");
  stays("in bias: f16[6, 1, 5]", "in bias: f16[m, 1, 5]");
}

}  // namespace
}  // namespace encore::fuse::tests
