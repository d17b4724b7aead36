#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kFlat = R"(in x: f16[b, n, 2]
const w: f16[2, 8]
const c: f16[8]
const two: i64[2] = [-1, 2]
const three: i64[3] = [-1, 0, 8]
flat: f16[m, 2] = Reshape(x, two)
rows: f16[m, 8] = Gemm(flat, w, c)  # "product"
y: f16[b, n, 8] = Reshape(rows, three)  # "rows as they were"
out y
)";

TEST(FlatGemms, AreProductsOfTheRowsAsTheyWere) {
  EXPECT_EQ(after("flat_gemms", kFlat), R"(in x: f16[b, n, 2]
const w: f16[2, 8]
const c: f16[8]
"y without its bias": f16[b, n, 8] = MatMul(x, w)  # "product"
y: f16[b, n, 8] = Add("y without its bias", c)  # "rows as they were"
out y
)");
  EXPECT_EQ(after("flat_gemms", replaced(kFlat, "w, c)", "w) {beta = 2.0}")), R"(in x: f16[b, n, 2]
const w: f16[2, 8]
y: f16[b, n, 8] = MatMul(x, w)  # "product"
out y
)");
}

// Their columns may be cut into heads at once.
TEST(FlatGemms, AreCutBehind) {
  EXPECT_EQ(after("flat_gemms", replaced(kFlat, "y: f16[b, n, 8]", "y: f16[b, n, 4, 2]")), R"(in x: f16[b, n, 2]
const w: f16[2, 8]
const c: f16[8]
const "rows as they were's shape": i64[4] = [0, 0, 4, 2]
"y in rows without its bias": f16[b, n, 8] = MatMul(x, w)  # "product"
"y in rows": f16[b, n, 8] = Add("y in rows without its bias", c)  # "rows as they were"
y: f16[b, n, 4, 2] = Reshape("y in rows", "rows as they were's shape")  # "rows as they were"
out y
)");
}

// Heads may have been put into rows at once.
TEST(FlatGemms, MayHaveCutRows) {
  EXPECT_EQ(after("flat_gemms", replaced(replaced(kFlat, "x: f16[b, n, 2]", "x: f16[b, n, 3, 4]"), "const w: f16[2, 8]",
                                         "const w: f16[12, 8]")),
            R"(in x: f16[b, n, 3, 4]
const "'s shape": i64[3] = [0, 0, 12]
const w: f16[12, 8]
const c: f16[8]
"flat as they were": f16[b, n, 12] = Reshape(x, "'s shape")
"y without its bias": f16[b, n, 8] = MatMul("flat as they were", w)  # "product"
y: f16[b, n, 8] = Add("y without its bias", c)  # "rows as they were"
out y
)");
}

// Others may read the rows in two dimensions.
TEST(FlatGemms, SeveralHaveTheSameRows) {
  const std::string made = after("flat_gemms", replaced(kFlat, "out y", R"(others: f16[m, 8] = Gemm(flat, w, c)
z: f16[b, n, 8] = Reshape(others, three)
norm: f16[m, 2] = Softmax(flat)
out y
out z
out norm)"));
  EXPECT_EQ(made.find("Gemm"), made.npos) << made;
  EXPECT_NE(made.find("flat: f16[m, 2] = Reshape(x, two)"), made.npos) << made;
  EXPECT_NE(made.find("\"z without its bias\": f16[b, n, 8] = MatMul(x, w)"), made.npos) << made;
}

TEST(FlatGemms, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("flat_gemms", kFlat, part, by); };
  stays("y: f16[b, n, 8]", "y: f16[n, b, 8]");
  stays("y: f16[b, n, 8]", "y: f16[b, k, 8]");
  stays("y: f16[b, n, 8]", "y: f16[b, ?, 8]");
  stays("y: f16[b, n, 8]", "y: f16[b, n, 4, 4]");
  stays("y: f16[b, n, 8]", "y: f16[b, n, 4, ?]");
  stays("y: f16[b, n, 8]", "y: f16[n, 8]");
  stays("y: f16[b, n, 8]", "y: f16");
  stays("x: f16[b, n, 2]", "x: f16[b, n, 1]");
  stays("x: f16[b, n, 2]", "x: f16[b, n, ?, 2]");
  stays("x: f16[b, n, 2]", "x: f16[n, 1, 2]");
  stays("x: f16[b, n, 2]", "x: f16");
  stays("w, c)", "w, c) {transB = 1}");
  stays("w, c)", "w, c) {transA = 1}");
  stays("w, c)", "w, c) {alpha = 0.5}");
  stays("w, c)", "w, c) {beta = 0.5}");
  stays("const c: f16[8]", "const c: f16[1]");
  stays("const c", "in c");
  stays("const w", "in w");
  stays("rows: f16", "rows: f64");
  stays("out y", "out y\nout rows");
  stays("out y", "z = Relu(rows)\nout y\nout z");
  stays("flat: f16", "elsewhere flat: f16");
  stays("y: f16", "host y: f16");
}

}  // namespace
}  // namespace encore::fuse::tests
