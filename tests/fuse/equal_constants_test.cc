#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// Tables of two layers.
constexpr const char* kTables = R"(in x: f16[n, 2]
in y: f16[n, 2]
const first: f16[2] = [1, 2]
const second: f16[2] = [1, 2]
a: f16[n, 2] = Mul(x, first)
b: f16[n, 2] = Mul(y, second)
out a
out b
)";

TEST(EqualConstants, AreOne) {
  EXPECT_EQ(after("equal_constants", kTables), R"(in x: f16[n, 2]
in y: f16[n, 2]
const first: f16[2] = [1.0, 2.0]
a: f16[n, 2] = Mul(x, first)
b: f16[n, 2] = Mul(y, first)
out a
out b
)");
}

// So what reads them may be, too.
TEST(EqualConstants, AreOneForWhatIsComputedTwice) {
  std::string text = replaced(kTables, "in y: f16[n, 2]\n", "");
  text = replaced(text, "Mul(y, second)", "Mul(x, second)");
  Plan plan = plan_from(replaced(text, "out a\nout b", "c: f16[n, 2] = Sub(a, b)\nout c"));
  for (const std::string_view name : {"equal_constants", "same"})
    run(*std::ranges::find(passes(), name, &Pass::name), plan);
  EXPECT_NE(text_of(plan).find("Sub(a, a)"), std::string::npos) << text_of(plan);
}

TEST(EqualConstants, OthersStay) {
  const auto stays = [](const char* part, const char* by) { expect_stays("equal_constants", kTables, part, by); };
  stays("second: f16[2] = [1, 2]", "second: f16[2] = [1, 3]");
  stays("second: f16[2] = [1, 2]", "second: bf16[2] = [1, 2]");
  stays("second: f16[2] = [1, 2]", "second: f16[1, 2] = [1, 2]");
  stays("Mul(y, second)", "RMSNormalization(y, second)");
  std::string long_one = "[1", other = "[1";
  for (int i = 0; i < 99; ++i) long_one += ", 0", other += i == 98 ? ", 1" : ", 0";
  std::string text = replaced(kTables, "first: f16[2] = [1, 2]", "first: f16[100] = " + long_one + "]");
  text = replaced(text, "second: f16[2] = [1, 2]", "second: f16[100] = " + other + "]");
  EXPECT_EQ(after("equal_constants", text), text_of(plan_from(text)));
}

}  // namespace
}  // namespace encore::fuse::tests
