#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// Swin V2's queries.
constexpr const char* kHeads = R"(in x: f16[n, 6, 96]
const scale: f16[4, 1, 1]
const shape: i64[5] = [0, 0, 3, 4, 8]
const order: i64[] = 1
const small: f16[] = 0
const last: i64[1] = -1
r: f16[n, 6, 3, 4, 8] = Reshape(x, shape)
s: f16[n, 6, 4, 8] = Gather(r, order) {axis = 2}
h: f16[n, 4, 6, 8] = Transpose(s) {perm = [0, 2, 1, 3]}
l: f16[n, 4, 6, 1] = ReduceL2(h, last)
c: f16[n, 4, 6, 1] = Clip(l, small)
d: f16[n, 4, 6, 8] = Div(h, c)  # "norm"
y: f16[n, 4, 6, 8] = Mul(d, scale)
out y
)";

std::string made_of(const std::string& text) {
  Plan plan = plan_from(text);
  for (const std::string_view name : {"spelled_l2_norms", "viewed_norms"})
    run(*std::ranges::find(passes(), name, &Pass::name), plan);
  return text_of(plan);
}

TEST(ViewedNorms, ReadHeadsWhereTheyAre) {
  EXPECT_EQ(made_of(kHeads), R"(in x: f16[n, 6, 96]
const scale: f16[4, 1, 1]
y: f16[n, 4, 6, 8] = encore.L2Norm(x, scale) {least = 0.0, x = "reshape 0,0,3,4,8; select 2,1; transpose 0,2,1,3"}  # "norm"
out y
)");
}

TEST(ViewedNorms, OthersReadHeadsToo) {
  const std::string made = made_of(replaced(kHeads, "out y", "z: f16[n, 4, 6, 8] = Relu(h)\nout y\nout z"));
  EXPECT_NE(made.find("encore.L2Norm(x, scale)"), made.npos) << made;
  EXPECT_NE(made.find("h: f16[n, 4, 6, 8] = Transpose(s)"), made.npos) << made;
}

TEST(ViewedNorms, WhatMultipliesIsOneNumberForEach) {
  for (const auto& [part, by] : {std::pair{"const scale", "in scale"},
                                 {"scale: f16[4, 1, 1]", "scale: f16[4, 1, 8]"},
                                 {"out y", "out y\nout d"}}) {
    const std::string made = made_of(replaced(kHeads, part, by));
    EXPECT_NE(made.find("encore.L2Norm(x)"), made.npos) << made;
    EXPECT_NE(made.find("Mul(d, scale)"), made.npos) << made;
  }
}

TEST(ViewedNorms, WhatIsThereAlreadyIsReadAsItIs) {
  const std::string text = R"(in h: f16[n, 4, 6, 8]
const small: f16[] = 0
const last: i64[1] = -1
l: f16[n, 4, 6, 1] = ReduceL2(h, last)
c: f16[n, 4, 6, 1] = Clip(l, small)
y: f16[n, 4, 6, 8] = Div(h, c)
out y
)";
  EXPECT_NE(made_of(text).find("encore.L2Norm(h) {least = 0.0}"), std::string::npos);
}

}  // namespace
}  // namespace encore::fuse::tests
