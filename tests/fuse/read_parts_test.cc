#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kPart = R"(in x: f16[n, 14, 14, 64]
const sizes: i64[2] = [40, 24]
const w: f16[32, 24, 3, 3]
a: f16[n, 14, 14, 40], b: f16[n, 14, 14, 24] = Split(x, sizes) {axis = -1}
c: f16[n, 14, 14, 40] = Softmax(a)
y: f16[n, 14, 14, 32] = com.ms.internal.nhwc.Conv@11(b, w) {group = 1, pads = [1, 1, 1, 1]}  # "conv"
out c
out y
)";

TEST(ReadParts, ConvolutionsReadThemWhereTheyAre) {
  EXPECT_EQ(after("read_parts", kPart), R"(in x: f16[n, 14, 14, 64]
const sizes: i64[2] = [40, 24]
const w: f16[32, 24, 3, 3]
a: f16[n, 14, 14, 40], _ = Split(x, sizes) {axis = -1}
c: f16[n, 14, 14, 40] = Softmax(a)
y: f16[n, 14, 14, 32] = com.ms.internal.nhwc.Conv@11(x, w) {first_channel = 40, group = 1, last_channel = 64, pads = [1, 1, 1, 1]}  # "conv"
out c
out y
)");
}

TEST(ReadParts, OfASlice) {
  const std::string slice =
      replaced(replaced(kPart, "a: f16[n, 14, 14, 40], b: f16[n, 14, 14, 24] = Split(x, sizes) {axis = -1}",
                        "b: f16[n, 14, 14, 24] = Slice(x, eight, end, last)"),
               "const sizes: i64[2] = [40, 24]",
               "const eight: i64[1] = [8]\nconst end: i64[1] = [32]\nconst last: i64[1] = [3]");
  const std::string made = after("read_parts", replaced(slice, "Softmax(a)", "Softmax(x)"));
  EXPECT_NE(made.find("nhwc.Conv@11(x, w) {first_channel = 8, group = 1, last_channel = 32"), made.npos) << made;
  EXPECT_EQ(made.find("Slice("), made.npos) << made;
}

TEST(ReadParts, OthersAreCutOut) {
  const auto stays = [](const char* part, const char* by) { expect_stays("read_parts", kPart, part, by); };
  stays("out c", "out b\nout c");
  stays("Softmax(a)", "Softmax(b)");
  stays("com.ms.internal.nhwc.Conv@11(b, w)", "Conv@11(b, w)");
  stays("{group = 1, ", "{group = 1, takes_planes = 1, ");
  stays("axis = -1}\nc", "axis = 2}\nc");
}

}  // namespace
}  // namespace encore::fuse::tests
