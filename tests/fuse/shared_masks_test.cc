#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kLayers = R"(in x: f16[b, h, n, 16]
in xt: f16[b, h, 16, n]
in mask: f16[b, 1, 1, n]
s: f16[b, h, n, n] = MatMul(x, xt)
m: f16[b, h, n, n] = Add(s, mask)
p: f16[b, h, n, n] = Softmax(m) {axis = -1}
y: f16[b, h, n, 16] = MatMul(p, x)
s2: f16[b, h, n, n] = MatMul(y, xt)
m2: f16[b, h, n, n] = Add(mask, s2)
p2: f16[b, h, n, n] = Softmax(m2) {axis = -1}
z: f16[b, h, n, 16] = MatMul(p2, y)
out z
)";

std::string shared(const std::string& text) {
  Plan plan = plan_from(text);
  for (const char* name : {"attention", "shared_masks"})
    run(*std::ranges::find(passes(), std::string_view(name), &Pass::name), plan);
  return text_of(plan);
}

TEST(SharedMasks, TheFirstMakesWhatTheOthersRead) {
  const std::string made = shared(kLayers);
  EXPECT_NE(made.find("y: f16[b, h, n, 16], \"mask as a bias\": f16, \"mask's blind rows\": bool = "
                      "encore.Attention(x, xt, x, mask)"),
            made.npos)
      << made;
  EXPECT_NE(
      made.find("z: f16[b, h, n, 16] = encore.Attention(y, xt, y, mask, \"mask as a bias\", \"mask's blind rows\")"),
      made.npos)
      << made;
}

TEST(SharedMasks, EachHasItsOwnOtherwise) {
  const std::string other = replaced(replaced(kLayers, "Add(mask, s2)", "Add(other, s2)"), "in mask: f16[b, 1, 1, n]\n",
                                     "in mask: f16[b, 1, 1, n]\nin other: f16[b, 1, 1, n]\n");
  EXPECT_EQ(shared(other), after("attention", other));
}

}  // namespace
}  // namespace encore::fuse::tests
