#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kLayer = R"(in q: u8[n, 4]
in s: f32[]
in z: u8[]
const w: i8[4, 8]
const of_w: f32[] = 0.5
const zero: i8[] = 0
const bias: f32[8]
p: i32[n, 8] = MatMulInteger(q, w, z, zero)  # "layer"
m: f32[] = Mul(s, of_w)
c: f32[n, 8] = Cast(p) {to = 1}
r: f32[n, 8] = Mul(c, m)
y: f32[n, 8] = Add(r, bias)
out y
)";

TEST(IntegerProducts, TakeScalesAndBiasAlong) {
  const std::string made = after("integer_products", kLayer);
  EXPECT_NE(made.find("y: f32[n, 8] = encore.ScaledIntegerProduct(q, w, z, zero, s, of_w, bias)  # \"layer\""),
            made.npos)
      << made;
}

TEST(IntegerProducts, InOtherOrders) {
  const auto is_one = [](const char* part, const char* by, const char* wanted) {
    const std::string made = after("integer_products", replaced(kLayer, part, by));
    EXPECT_NE(made.find(wanted), made.npos) << made;
  };
  is_one("Mul(s, of_w)", "Mul(of_w, s)", "(q, w, z, zero, s, of_w, bias)");
  is_one("Mul(c, m)", "Mul(m, c)", "(q, w, z, zero, s, of_w, bias)");
  is_one("Add(r, bias)", "Add(bias, r)", "(q, w, z, zero, s, of_w, bias)");
  is_one("Add(r, bias)", "Neg(r)", "r: f32[n, 8] = encore.ScaledIntegerProduct(q, w, z, zero, s, of_w)");
  is_one("const bias: f32[8]", "in bias: f32[n, 8]",
         "r: f32[n, 8] = encore.ScaledIntegerProduct(q, w, z, zero, s, of_w)");
  is_one("MatMulInteger(q, w, z, zero)", "MatMulInteger(q, w, z)", "(q, w, z, _, s, of_w, bias)");
  is_one("const of_w: f32[] = 0.5", "const of_w: f32[8]", "(q, w, z, zero, s, of_w, bias)");
}

TEST(IntegerProducts, StayWhereScalesAreOthers) {
  const auto stays = [](const char* part, const char* by) {
    const std::string made = after("integer_products", replaced(kLayer, part, by));
    EXPECT_NE(made.find("MatMulInteger("), made.npos) << made;
  };
  stays("in s: f32[]", "in s: f32[8]");
  stays("const of_w: f32[] = 0.5", "in of_w: f32[]");
  stays("const of_w: f32[] = 0.5", "const of_w: f32[4]");
  stays("in q: u8[n, 4]", "in q: u8");
  stays("c: f32[n, 8] = Cast(p) {to = 1}", "c: f16[n, 8] = Cast(p) {to = 10}");
  stays("out y", "out y\nout p");
  stays("out y", "out y\nout c");
}

}  // namespace
}  // namespace encore::fuse::tests
