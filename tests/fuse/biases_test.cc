#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kProduct = R"(in x: f32[n, 4]
const w: f32[4, 8]
const b: f32[8]
product: f32[n, 8] = MatMul(x, w)  # "first"
y: f32[n, 8] = Add(product, b)  # "second"
out y
)";

TEST(Biases, AProductAddsItOnTheWay) {
  EXPECT_EQ(after("biases", kProduct), R"(in x: f32[n, 4]
const w: f32[4, 8]
const b: f32[8]
y: f32[n, 8] = MatMul(x, w, b)  # "first and second"
out y
)");
}

TEST(Biases, TheSumMayBeTheOtherWayRound) {
  EXPECT_EQ(after("biases", replaced(kProduct, "product, b", "b, product")), after("biases", kProduct));
}

TEST(Biases, StaysOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("biases", kProduct, part, by); };
  stays("const b", "in b");
  stays("const w", "in w");
  stays("w: f32[4, 8]", "w: f32[1, 4, 8]");
  stays("b: f32[8]", "b: f32[1]");
  stays("b: f32[8]", "b: f32[1, 1, 8]");
  stays("b: f32[8]", "b: f32[2, 8]");
  stays("x: f32", "x: f64");
  stays("out y", "out y\nout product");
  stays("out y", "z = Relu(product)\nout y\nout z");
  stays("Add(", "Sub(");
  stays("Add(", "Add@6(");
  stays("y: f32", "elsewhere y: f32");
  stays("product: f32", "host product: f32");
}

}  // namespace
}  // namespace encore::fuse::tests
