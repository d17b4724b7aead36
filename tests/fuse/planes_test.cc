#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kFirst = R"(in x: f16[n, 3, 24, 32]
const w: f16[16, 3, 7, 7]
t: f16[n, 24, 32, 3] = Transpose(x) {perm = [0, 2, 3, 1]}
y: f16[n, 12, 16, 16] = com.ms.internal.nhwc.FusedConv(t, w, _, _) {activation = "Relu", pads = [3, 3, 3, 3], strides = [2, 2]}  # "first"
out y
)";

TEST(Planes, AreTurnedByTheirConvolution) {
  EXPECT_EQ(after("planes", kFirst), R"(in x: f16[n, 3, 24, 32]
const w: f16[16, 3, 7, 7]
y: f16[n, 12, 16, 16] = com.ms.internal.nhwc.FusedConv(x, w, _, _) {activation = "Relu", pads = [3, 3, 3, 3], strides = [2, 2], takes_planes = 1}  # "first"
out y
)");
}

TEST(Planes, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("planes", kFirst, part, by); };
  stays("perm = [0, 2, 3, 1]", "perm = [0, 3, 2, 1]");
  stays("const w", "in w");
  stays("out y\n", "out y\nout t\n");
  stays("const w: f16[16, 3, 7, 7]", "const w: f16[16, 3, 1, 1]");
  stays("strides = [2, 2]}", "strides = [2, 2], group = 3}");
  stays("in x: f16[n, 3, 24, 32]", "in x: f16[n, ?, 24, 32]");
  stays("in x: f16[n, 3, 24, 32]\nconst w: f16[16, 3, 7, 7]", "in x: f16[n, 8, 24, 32]\nconst w: f16[16, 8, 7, 7]");
  stays("in x: f16[n, 3, 24, 32]", "in x: f64[n, 3, 24, 32]");
}

}  // namespace
}  // namespace encore::fuse::tests
