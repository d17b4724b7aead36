#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kEncoder = R"(in x: f16[b, n, 2]
const wq: f16[2, 8] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
const wk: f16[2, 8] = [21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36]
const wv: f16[2, 8]
const bq: f16[8]
const bk: f16[8]
const bv: f16[8]
const heads: i64[4] = [0, 0, 1, 8]
q: f16[b, n, 8] = MatMul(x, wq, bq)  # "queries"
k: f16[b, n, 8] = MatMul(x, wk, bk)  # "keys"
v: f16[b, n, 8] = MatMul(x, wv, bv)  # "values"
q4: f16[b, n, 1, 8] = Reshape(q, heads)
qh: f16[b, 1, n, 8] = Transpose(q4) {perm = [0, 2, 1, 3]}
k4: f16[b, n, 1, 8] = Reshape(k, heads)
kh: f16[b, 1, 8, n] = Transpose(k4) {perm = [0, 2, 3, 1]}
v4: f16[b, n, 1, 8] = Reshape(v, heads)
vh: f16[b, 1, n, 8] = Transpose(v4) {perm = [0, 2, 1, 3]}
scores: f16[b, 1, n, n] = MatMul(qh, kh)
p: f16[b, 1, n, n] = Softmax(scores) {axis = -1}
y: f16[b, 1, n, 8] = MatMul(p, vh)
out y
)";

Plan plan_joined(const std::string& text) {
  Plan plan = plan_from(text);
  for (const char* name : {"attention", "projections"})
    run(*std::ranges::find(passes(), std::string_view(name), &Pass::name), plan);
  return plan;
}
std::string joined(const std::string& text) { return text_of(plan_joined(text)); }

TEST(Projections, OneProductForAll) {
  const std::string made = joined(kEncoder);
  EXPECT_NE(made.find("\"q with its kin\": f16[b, n, 24] = MatMul(x, wq, bq)  # \"queries and keys and values\""),
            made.npos)
      << made;
  EXPECT_NE(made.find("k = \"slice -1,8,8,24; reshape 0,0,1,8; "), made.npos) << made;
  EXPECT_NE(made.find("v = \"slice -1,16,8,24; reshape 0,0,1,8; "), made.npos) << made;
}

// Queries that are rotated on their way are read by the rotation.
TEST(Projections, ThroughARotation) {
  std::string text = replaced(kEncoder, "const heads", R"(in cos: f16[n, 8]
in sin: f16[n, 8]
const zero: i64[1] = [0]
const half: i64[1] = [4]
const size: i64[1] = [8]
const last: i64[1] = [3]
const heads)");
  text = replaced(text, "scores: f16[b, 1, n, n] = MatMul(qh, kh)", R"(plain: f16[b, 1, n, 8] = Mul(qh, cos)
low: f16[b, 1, n, 4] = Slice@13(qh, zero, half, last)
high: f16[b, 1, n, 4] = Slice@13(qh, half, size, last)
negative: f16[b, 1, n, 4] = Neg(high)
turned: f16[b, 1, n, 8] = Concat(negative, low) {axis = -1}
by_sin: f16[b, 1, n, 8] = Mul(turned, sin)
rotated: f16[b, 1, n, 8] = Add(plain, by_sin)
scores: f16[b, 1, n, n] = MatMul(rotated, kh))");
  Plan plan = plan_from(text);
  for (const char* name : {"rotations", "attention", "projections"})
    run(*std::ranges::find(passes(), std::string_view(name), &Pass::name), plan);
  const std::string made = text_of(plan);
  EXPECT_NE(made.find("encore.Rotation(\"q with its kin\", cos, sin) {x = \"slice -1,0,8,24; reshape 0,0,1,8; "),
            made.npos)
      << made;
  EXPECT_NE(
      made.find("encore.Attention(\"rotated before it is turned\", \"q with its kin\", \"q with its kin\", _) {k = "
                "\"slice -1,8,8,24; "),
      made.npos)
      << made;
}

TEST(Projections, ConstantsLieBesideEachOther) {
  const std::string text =
      replaced(kEncoder, "const wv: f16[2, 8]",
               "const wv: f16[2, 8] = [41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56]");
  const Plan plan = plan_joined(text);
  const Tensor* weights = nullptr;
  for (const Value& value : plan.values)
    if (value.constant && value.constant->shape == ops::Shape{2, 24}) weights = value.constant;
  ASSERT_NE(weights, nullptr);
  std::vector<float> row;
  for (int i = 0; i < 48; ++i) row.push_back(float(weights->as<device::Half>()[i]));
  for (int i = 0; i < 24; ++i) {
    EXPECT_EQ(row[size_t(i)], float(i / 8 * 20 + i % 8 + 1));
    EXPECT_EQ(row[size_t(24 + i)], float(i / 8 * 20 + i % 8 + 9));
  }
}

// As Whisper's keys have none.
TEST(Projections, WhereSomeHaveABias) {
  const std::string text =
      replaced(kEncoder, "const bv: f16[8]", "const bv: f16[8] = [31, 32, 33, 34, 35, 36, 37, 38]");
  const std::string without = replaced(replaced(text, "MatMul(x, wq, bq)", "MatMul(x, wq)"), "wk, bk", "wk");
  const Plan plan = plan_joined(without);
  const std::string made = text_of(plan);
  EXPECT_NE(made.find("f16[b, n, 24] = MatMul(x, wq, \"no bv\")  # \"queries and keys and values\""), made.npos)
      << made;
  const auto bias = std::ranges::find_if(
      plan.values, [](const Value& value) { return value.constant && value.constant->shape == ops::Shape{24}; });
  ASSERT_NE(bias, plan.values.end());
  for (int i = 0; i < 24; ++i)
    EXPECT_EQ(float(bias->constant->as<device::Half>()[i]), i < 16 ? 0.f : float(i + 15)) << i;

  const std::string apart = joined(replaced(without, "const bv: f16[8]", "const bv: f16[1, 8]"));
  EXPECT_NE(apart.find("# \"values\""), apart.npos) << apart;
  const std::string none = joined(replaced(without, "wv, bv", "wv"));
  EXPECT_NE(none.find("f16[b, n, 24] = MatMul(x, wq)"), none.npos) << none;
}

TEST(Projections, KeysAndValuesOfOthersThanQueries) {
  const std::string made = joined(
      replaced(replaced(kEncoder, "in x:", "in z: f16[b, n, 2]\nin x:"), "MatMul(x, wq, bq)", "MatMul(z, wq, bq)"));
  EXPECT_NE(made.find("= MatMul(z, wq, bq)  # \"queries\""), made.npos) << made;
  EXPECT_NE(made.find("\"k with its kin\": f16[b, n, 16] = MatMul(x, wk, bk)  # \"keys and values\""), made.npos)
      << made;
}

TEST(Projections, StayApartOtherwise) {
  const auto stays = [](const char* part, const char* by) {
    const std::string made = joined(replaced(kEncoder, part, by));
    EXPECT_NE(made.find("# \"values\""), made.npos) << made;
  };
  stays("out y", "out y\nout v");
  stays("const wv: f16[2, 8]", "in wv: f16[2, 8]");
  stays("const bv: f16[8]", "const bv: f16[1, 8]");
  stays("MatMul(x, wv, bv)", "MatMul(x, wk, bv)");
}

constexpr const char* kDecoder = R"(in x: f16[b, n, 64]
in past_k: f16[b, 1, p, 16]
in past_v: f16[b, 1, p, 16]
in lengths: i32[b]
in total: i32[]
const wq: u8[32, 2, 16]
const sq: f16[32, 2]
const wk: u8[16, 2, 16]
const sk: f16[16, 2]
const wv: u8[16, 2, 16]
const sv: f16[16, 2]
q: f16[b, n, 32] = com.microsoft.MatMulNBits(x, wq, sq) {K = 64, N = 32, bits = 4, block_size = 32}  # "q"
k: f16[b, n, 16] = com.microsoft.MatMulNBits(x, wk, sk) {K = 64, N = 16, bits = 4, block_size = 32}  # "k"
v: f16[b, n, 16] = com.microsoft.MatMulNBits(x, wv, sv) {K = 64, N = 16, bits = 4, block_size = 32}  # "v"
y: f16[b, n, 32], keys: f16[b, 1, t, 16], values: f16[b, 1, t, 16] = com.microsoft.GroupQueryAttention(q, k, v, past_k, past_v, lengths, total) {kv_num_heads = 1, num_heads = 2}
out y
)";

TEST(Projections, GroupQueryAttentionTakesThemPacked) {
  const std::string made = after("projections", kDecoder);
  EXPECT_NE(
      made.find("f16[b, n, 64] = com.microsoft.MatMulNBits(x, wq, sq) {K = 64, N = 64, bits = 4, block_size = 32}"),
      made.npos)
      << made;
  EXPECT_NE(made.find("com.microsoft.GroupQueryAttention(\"q with its kin\", _, _, past_k"), made.npos) << made;
  expect_stays("projections", kDecoder, "bits = 4, block_size = 32}  # \"v\"", "bits = 8, block_size = 32}  # \"v\"");
  const std::string biased = after("projections", replaced(replaced(kDecoder, "const wv", "const b: f16[32]\nconst wv"),
                                                           "wq, sq", "wq, sq, _, _, b"));
  EXPECT_NE(biased.find("f16[b, n, 64] = com.microsoft.MatMulNBits(x, wq, sq, _, _, b)"), biased.npos) << biased;
}

TEST(Projections, SayWhyNoneIsOneWithAnother) {
  const std::string crossed =
      replaced(replaced(kEncoder, "in x", "in z: f16[b, n, 2]\nin x"), "MatMul(x, wq, bq)", "MatMul(z, wq, bq)");
  EXPECT_EQ(plan_joined(crossed).notes, Notes{});
  EXPECT_EQ(plan_joined(replaced(crossed, "out y", "t: f16[b, n, 8] = MatMul(z, wk)\nout y\nout t")).notes,
            Notes{"MatMul node 'values' does not become one product: its weights are not alike those of the other "
                  "products, or others read them"});
}

}  // namespace
}  // namespace encore::fuse::tests
