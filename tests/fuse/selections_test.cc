#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kSteps = R"(in x: f16[b, 3, 4]
in y: f16[b, 4]
const first: i64[] = 0
const last: i64[] = -1
a: f16[b, 4] = Gather(x, first) {axis = 1}  # "first"
b: f16[b, 4] = Gather(x, last) {axis = 1}  # "last"
c: f16[b, 4] = Mul(y, a)  # "c"
d: f16[b, 4] = Add(c, b)  # "d"
out d
)";

TEST(Selections, AreReadInPlace) {
  Plan plan = plan_from(kSteps);
  for (const std::string_view name : {"selections", "elementwise", "unread"})
    run(*std::ranges::find(passes(), name, &Pass::name), plan);
  EXPECT_EQ(text_of(plan), R"(in x: f16[b, 3, 4]
in y: f16[b, 4]
const "x's joint shape": i64[2] = [0, 12]
"x in one": f16[b, 12] = Reshape(x, "x's joint shape")  # "first"
d: f16[b, 4] = encore.Elementwise(y, "x in one", "x in one") {expression = "part x1 along -1 from 0 to 4; part x2 along -1 from 8 to 12; v0: float16 = mul(x0, x1); v1: float16 = add(v0, x2); out v1"}  # "c to d"
out d
)");
}

TEST(Selections, StayForOthers) {
  std::string one = replaced(kSteps, "b: f16[b, 4] = Gather(x, last) {axis = 1}  # \"last\"\n", "");
  one = replaced(one, "d: f16[b, 4] = Add(c, b)", "d: f16[b, 4] = Exp(c)");
  const auto stays = [&](const char* part, const char* by) { expect_stays("selections", one, part, by); };
  stays("first: i64[] = 0", "first: i64[] = 3");
  stays("const first: i64[] = 0", "in first: i64[]");
  stays("in x: f16[b, 3, 4]", "in x: f16[b, 3, c]");
  stays("out d", "out d\nout a");
  stays("Mul(y, a)", "MatMul(y, a)");
  expect_stays("selections", replaced(one, "x: f16[b, 3, 4]", "x: f16[b, 4, 3]"), "{axis = 1}", "{axis = 2}");
  expect_stays("selections", replaced(one, "first: i64[] = 0", "first: i64[1] = 0"), "a: f16[b, 4]", "a: f16[b, 1, 4]");
}

}  // namespace
}  // namespace encore::fuse::tests
