#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kMasked = R"(in scores: f32[n, 12, s, t]
in mask: f32[n, 1, s, t]
const zero: f32[] = 0
masked: f32[n, 12, s, t] = Add(scores, mask)  # "mask"
weights: f32[n, 12, s, t] = Softmax(masked) {axis = -1}  # "softmax"
nan: bool[n, 12, s, t] = IsNaN(weights)  # "nan"
y: f32[n, 12, s, t] = Where(nan, zero, weights)  # "where"
out y
)";

TEST(Softmaxes, TheMaskAndTheZerosGoAlong) {
  EXPECT_EQ(after("softmaxes", kMasked), R"(in scores: f32[n, 12, s, t]
in mask: f32[n, 1, s, t]
y: f32[n, 12, s, t] = encore.MaskedSoftmax(scores, mask) {zeros = 1}  # "softmax"
out y
)");
}

TEST(Softmaxes, TheMaskAlone) {
  const char* const made = " = encore.MaskedSoftmax(scores, mask) {zeros = 0}";
  const auto joined = [&](const char* part, const char* by) {
    EXPECT_NE(after("softmaxes", replaced(kMasked, part, by)).find(made), std::string::npos) << by;
  };
  joined("= 0\n", "= 1\n");
  joined("const zero: f32[] = 0", "in zero: f32[]");
  joined("Where(nan, zero, weights)", "Where(nan, weights, zero)");
  joined("out y", "out y\nout weights");
  joined("out y", "out y\nout nan");
}

TEST(Softmaxes, Masks) {
  const auto joined = [&](const char* dims, const char* order) {
    const std::string masked = replaced(replaced(kMasked, "f32[n, 1, s, t]", dims), "Add(scores, mask)", order);
    EXPECT_NE(after("softmaxes", masked).find(" = encore.MaskedSoftmax(scores, mask)"), std::string::npos) << dims;
  };
  for (const char* dims : {"f32[n, 12, s, t]", "f32[s, t]", "f32[t]", "f32[n, 1, 1, t]"})
    joined(dims, "Add(scores, mask)");
  joined("f32[1, 1, s, t]", "Add(mask, scores)");
}

TEST(Softmaxes, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("softmaxes", kMasked, part, by); };
  stays("mask: f32[n, 1, s, t]", "mask: f32[n, 1, s, 1]");
  stays("mask: f32[n, 1, s, t]", "mask: f32[n, 1, s, u]");
  stays("mask: f32[n, 1, s, t]", "mask: f32[1, 12, 1, t]");
  stays("mask: f32[n, 1, s, t]", "mask: f32");
  stays("axis = -1", "axis = 2");
  stays("out y", "out y\nout masked");
  stays("masked: f32[n, 12, s, t]", "elsewhere masked: f32[n, 12, s, t]");
  stays("Add(", "Sub(");
}

}  // namespace
}  // namespace encore::fuse::tests
