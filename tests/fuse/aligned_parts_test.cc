#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kCut = R"(in x: f32[n, 6, 6, 1]
const w: f32[5, 1, 1, 1] = [1.0, 2.0, 3.0, 4.0, 5.0]
const b: f32[5] = [0.1, 0.2, 0.3, 0.4, 0.5]
const sizes: i64[2] = [3, 2]
c: f32[n, 6, 6, 5] = com.ms.internal.nhwc.Conv@11(x, w, b) {kernel_shape = [1, 1]}  # "conv"
y: f32[n, 6, 6, 3], z: f32[n, 6, 6, 2] = Split(c, sizes) {axis = 3}  # "cut"
out y
out z
)";

TEST(AlignedParts, HaveZerosBehind) {
  EXPECT_EQ(after("aligned_parts", kCut), R"(in x: f32[n, 6, 6, 1]
const w: f32[8, 1, 1, 1] = [1.0, 2.0, 3.0, 0.0, 4.0, 5.0, 0.0, 0.0]
const b: f32[8] = [0.1, 0.2, 0.3, 0.0, 0.4, 0.5, 0.0, 0.0]
const "cut's sizes": i64[4] = [3, 1, 2, 2]
"c with zeros between its parts": f32[n, 6, 6, 8] = com.ms.internal.nhwc.Conv@11(x, w, b) {kernel_shape = [1, 1]}  # "conv"
y: f32[n, 6, 6, 3], _, z: f32[n, 6, 6, 2], _ = Split("c with zeros between its parts", "cut's sizes") {axis = 3}  # "cut"
out y
out z
)");
}

TEST(AlignedParts, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("aligned_parts", kCut, part, by); };
  stays("out y", "out y\nout c");
  stays("out y", "out y\nr: f32[n, 6, 6, 5] = Relu(c)\nout r");
  stays("const w: f32[5, 1, 1, 1] = [1.0, 2.0, 3.0, 4.0, 5.0]", "in w: f32[5, 1, 1, 1]");
  stays("const b: f32[5] = [0.1, 0.2, 0.3, 0.4, 0.5]", "in b: f32[5]");
  stays("kernel_shape = [1, 1]", "group = 5, kernel_shape = [1, 1]");
  stays("axis = 3", "axis = 2");
  stays("com.ms.internal.nhwc.Conv@11", "Conv");
}

TEST(AlignedParts, StayWhereTheyAreAligned) {
  const std::string even = R"(in x: f16[n, 6, 6, 1]
const w: f16[24, 1, 1, 1]
c: f16[n, 6, 6, 24] = com.ms.internal.nhwc.Conv@11(x, w) {kernel_shape = [1, 1]}
y: f16[n, 6, 6, 8], z: f16[n, 6, 6, 16] = Split(c) {axis = 3, split = [8, 16]}
out y
out z
)";
  EXPECT_EQ(after("aligned_parts", even), text_of(plan_from(even)));
}

}  // namespace
}  // namespace encore::fuse::tests
