#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// Swin's, of windows whose rows are of several parts of a picture.
constexpr const char* kMask = R"(in x: f16[n, 2, 2]
const parts: f16[2, 1] = [0, 1]
const turned: f16[1, 2] = [0, 1]
const zero: f16[] = 0.0
const low: f16[] = -100.0
const axes: i64[1] = [0]
difference: f16[2, 2] = Sub(parts, turned)
same: bool[2, 2] = Equal(difference, zero)
mask: f16[2, 2] = Where(same, zero, low)
wide: f16[1, 2, 2] = Unsqueeze(mask, axes)
y: f16[n, 2, 2] = Add(x, wide)
out y
)";

TEST(Constants, AreMadeOfConstants) {
  EXPECT_EQ(after("constants", kMask), R"(in x: f16[n, 2, 2]
const wide: f16[1, 2, 2] = [0.0, -100.0, -100.0, 0.0]
y: f16[n, 2, 2] = Add(x, wide)
out y
)");
}

TEST(Constants, AreRoundedAsEachStepDoes) {
  const std::string made = after("constants", R"(in x: f16[2]
const a: f16[2] = [2048, 0.1]
const b: f16[2] = [1, 3]
sum: f16[2] = Add(a, b)
twice: f16[2] = Mul(sum, b)
y: f16[2] = Add(x, twice)
out y
)");
  EXPECT_NE(made.find("const twice: f16[2] = [2048.0, 9.296875]"), made.npos) << made;
}

// Angles of rotary embeddings.
TEST(Constants, CosinesAndSines) {
  const std::string made = after("constants", R"(in x: f16[2]
const angles: f16[2] = [0, 0.5]
cos: f16[2] = Cos(angles)
sin: f16[2] = Sin(angles)
c: f16[2] = Mul(x, cos)
y: f16[2] = Add(c, sin)
out y
)");
  EXPECT_NE(made.find("const cos: f16[2] = [1.0, 0.8774414]"), made.npos) << made;
  EXPECT_NE(made.find("const sin: f16[2] = [0.0, 0.4794922]"), made.npos) << made;
}

TEST(Constants, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) {
    const std::string made = after("constants", replaced(kMask, part, by));
    EXPECT_NE(made.find("Unsqueeze("), made.npos) << made;
  };
  stays("const parts: f16[2, 1] = [0, 1]", "in parts: f16[2, 1]");
  stays("const parts: f16[2, 1] = [0, 1]", "const parts: f16[2, 1]");
  stays("wide: f16[1, 2, 2]", "elsewhere wide: f16[1, 2, 2]");
  stays("out y", "out y\nout wide");
  const std::string wrong = replaced(kMask, "f16[2, 1] = [0, 1]", "f16[3, 3] = [0, 1, 2, 3, 4, 5, 6, 7, 8]");
  EXPECT_NE(after("constants", wrong).find("Sub(parts, turned)"), wrong.npos);
}

}  // namespace
}  // namespace encore::fuse::tests
