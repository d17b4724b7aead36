#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kBefore = R"(in x: f16[n, 7, 4]
const w: f16[4, 12]
const b: f16[12]
const heads: i64[4] = [7, -1, 3, 4]
t: f16[7, n, 4] = Transpose(x) {perm = [1, 0, 2]}
p: f16[7, n, 12] = MatMul(t, w)  # "product"
s: f16[7, n, 12] = Add(b, p)  # "bias"
y: f16[7, n, 3, 4] = Reshape(s, heads)
out y
)";

TEST(RowOrders, AreChangedBehindTheProduct) {
  EXPECT_EQ(after("row_orders", kBefore), R"(in x: f16[n, 7, 4]
const w: f16[4, 12]
const b: f16[12]
const heads: i64[4] = [7, -1, 3, 4]
"p before it is turned": f16[n, 7, 12] = MatMul(x, w)  # "product"
"s before it is turned": f16[n, 7, 12] = Add(b, "p before it is turned")  # "bias"
s: f16[7, n, 12] = Transpose("s before it is turned") {perm = [1, 0, 2]}
y: f16[7, n, 3, 4] = Reshape(s, heads)
out y
)");
  const auto stays = [](const char* part, const char* by) { expect_stays("row_orders", kBefore, part, by); };
  stays("y: f16[7, n, 3, 4] = Reshape(s, heads)", "y: f16[7, n, 12] = Relu(s)");
  stays("perm = [1, 0, 2]", "perm = [1, 2, 0]");
  stays("out y", "out y\nout t");
  stays("const b: f16[12]", "const b: f16[1, 1, 1, 12]");
}

constexpr const char* kBehind = R"(in z: f16[7, n, 3, 4]
const w: f16[12, 12]
const b: f16[12]
const flat: i64[2] = [-1, 12]
const back: i64[3] = [7, -1, 12]
r: f16[m, 12] = Reshape(z, flat)
p: f16[m, 12] = Gemm(r, w, b)  # "product"
q: f16[7, n, 12] = Reshape(p, back)
y: f16[n, 7, 12] = Transpose(q) {perm = [1, 0, 2]}  # "turn"
out y
)";

TEST(RowOrders, AreChangedBeforeTheProduct) {
  const std::string made = after("row_orders", kBehind);
  EXPECT_NE(made.find("\"z with its rows turned\": f16[n, 7, 3, 4] = Transpose"), made.npos) << made;
  EXPECT_NE(made.find("perm = [1, 0, 2, 3]"), made.npos) << made;
  EXPECT_NE(made.find("encore.View(\"p with its rows turned\") {steps = \"reshape -1,7,12\"}"), made.npos) << made;
  const auto stays = [](const char* part, const char* by) { expect_stays("row_orders", kBehind, part, by); };
  stays("in z: f16[7, n, 3, 4]", "in z: f16[n, 7, 3, 4]");
  stays("const b: f16[12]", "in b: f16[12]");
  stays("out y", "out y\nout p");
  stays("Gemm(r, w, b)", "Gemm(r, w, b) {transA = 1}");
}

// RoFormer's rotations, as onnxruntime leaves them.
TEST(TurnedOperands, AreTurnedOnce) {
  constexpr const char* kProduct = R"(in x: f16[1, 5, 3, 4]
const cos: f16[1, 5, 1, 4]
product: f16[1, 5, 3, 4] = Mul(x, cos)  # "product"
y: f16[1, 3, 5, 4] = Transpose(product) {perm = [0, 2, 1, 3]}
heads: f16[1, 3, 5, 4] = Transpose(x) {perm = [0, 2, 1, 3]}
z: f16[1, 3, 5, 4] = Relu(heads)
out y
out z
)";
  EXPECT_EQ(after("turned_operands", kProduct), R"(in x: f16[1, 5, 3, 4]
const cos: f16[1, 5, 1, 4]
"cos turned": f16[1, 1, 5, 4] = Transpose(cos) {perm = [0, 2, 1, 3]}  # "product"
heads: f16[1, 3, 5, 4] = Transpose(x) {perm = [0, 2, 1, 3]}
y: f16[1, 3, 5, 4] = Mul(heads, "cos turned")  # "product"
z: f16[1, 3, 5, 4] = Relu(heads)
out y
out z
)");
  const auto stays = [&](const char* part, const char* by) { expect_stays("turned_operands", kProduct, part, by); };
  stays("out z", "out z\nout product");
  stays("const cos", "in cos");
  stays("const cos: f16[1, 5, 1, 4]", "const cos: f16[4]");
  stays("Transpose(x) {perm = [0, 2, 1, 3]}", "Transpose(x) {perm = [0, 3, 1, 2]}");
}

}  // namespace
}  // namespace encore::fuse::tests
