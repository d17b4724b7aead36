#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

// Two heads of twelve, of one product.
constexpr const char* kHeads = R"(in x: f16[n, 5, 1]
const w: f16[1, 72] = [COLUMNS]
const bias: f16[72] = [COLUMNS]
const out: f16[24, 1] = [ROWS]
const apart: i64[5] = [0, 5, 3, 2, 12]
const ones: i64[3] = [1, 1, 1]
const two: i64[1] = [2]
const rows: i64[3] = [0, 5, 24]
product: f16[n, 5, 72] = MatMul(x, w)  # "qkv"
qkv: f16[n, 5, 72] = Add(bias, product)
all: f16[n, 5, 3, 2, 12] = Reshape(qkv, apart)
a: f16[n, 5, 1, 2, 12], b: f16[n, 5, 1, 2, 12], c: f16[n, 5, 1, 2, 12] = Split@13(all, ones) {axis = 2}
q3: f16[n, 5, 2, 12] = Squeeze@13(a, two)
k3: f16[n, 5, 2, 12] = Squeeze@13(b, two)
v3: f16[n, 5, 2, 12] = Squeeze@13(c, two)
q: f16[n, 2, 5, 12] = Transpose(q3) {perm = [0, 2, 1, 3]}
k: f16[n, 2, 12, 5] = Transpose(k3) {perm = [0, 2, 3, 1]}
v: f16[n, 2, 5, 12] = Transpose(v3) {perm = [0, 2, 1, 3]}
scores: f16[n, 2, 5, 5] = MatMul(q, k)
p: f16[n, 2, 5, 5] = Softmax(scores) {axis = -1}
h: f16[n, 2, 5, 12] = MatMul(p, v)
t: f16[n, 5, 2, 12] = Transpose(h) {perm = [0, 2, 1, 3]}  # "heads"
flat: f16[n, 5, 24] = Reshape(t, rows)  # "flat"
y: f16[n, 5, 1] = MatMul(flat, out)  # "out"
out y
)";

// The constants' numbers are 1, 2 and so on.
std::string with_numbers(std::string text, const char* part, int count) {
  std::string numbers = "1";
  for (int i = 2; i <= count; ++i) numbers += ", " + std::to_string(i);
  for (size_t at; (at = text.find(part)) != text.npos;) text.replace(at, std::string(part).size(), numbers);
  return text;
}

std::string padded(const std::string& text) {
  Plan plan = plan_from(with_numbers(with_numbers(text, "COLUMNS", 72), "ROWS", 24));
  for (const char* name : {"attention", "padded_heads"})
    run(*std::ranges::find(passes(), std::string_view(name), &Pass::name), plan);
  return text_of(plan);
}

TEST(PaddedHeads, AreMadeByColumnsOfZeros) {
  const std::string made = padded(kHeads);
  const auto has = [&](const char* part) { EXPECT_NE(made.find(part), made.npos) << part << "\n" << made; };
  has("\"product with larger heads\": f16[n, 5, 96] = MatMul(x, \"w with larger heads\")");
  has("\"qkv with larger heads\": f16[n, 5, 96] = Add(\"product with larger heads\", \"bias with larger heads\")");
  has("\"t with larger heads\": f16[n, 5, 2, 16] = encore.Attention(\"qkv with larger heads\", \"qkv with larger "
      "heads\", \"qkv with larger heads\", _)");
  has("q = \"reshape 0,5,3,2,16; slice 2,0,1,3; squeeze 2; transpose 0,2,1,3\"");
  has("\"flat with larger heads\": f16[n, 5, 32] = encore.View(\"t with larger heads\") {steps = \"reshape 0,5,32\"}");
  has("y: f16[n, 5, 1] = MatMul(\"flat with larger heads\", \"out with larger heads\")");
  EXPECT_EQ(made.find("(x, w)"), made.npos) << made;
}

TEST(PaddedHeads, MayBePartsOfColumns) {
  std::string text = replaced(kHeads, "const apart: i64[5] = [0, 5, 3, 2, 12]", "const apart: i64[4] = [0, 5, 2, 12]");
  const size_t from = text.find("all: "), to = text.find("q: f16");
  text.replace(from, to - from,
               R"(a: f16[n, 5, 24], b: f16[n, 5, 24], c: f16[n, 5, 24] = Split@13(qkv, thirds) {axis = 2}
q3: f16[n, 5, 2, 12] = Reshape(a, apart)
k3: f16[n, 5, 2, 12] = Reshape(b, apart)
v3: f16[n, 5, 2, 12] = Reshape(c, apart)
)");
  const std::string made =
      padded(replaced(text, "const ones: i64[3] = [1, 1, 1]", "const thirds: i64[3] = [24, 24, 24]"));
  EXPECT_NE(made.find("v = \"slice 2,64,32,96; reshape 0,5,2,16; transpose 0,2,1,3\""), made.npos) << made;
}

TEST(PaddedHeads, OnlyWhereAllIsKnown) {
  const auto stays = [](const char* part, const char* by) {
    const std::string made = padded(replaced(kHeads, part, by));
    EXPECT_EQ(made.find("encore.Attention"), made.npos) << made;
  };
  stays("const w: f16[1, 72] = [COLUMNS]", "in w: f16[1, 72]");
  stays("const out: f16[24, 1] = [ROWS]", "in out: f16[24, 1]");
  stays("const bias: f16[72] = [COLUMNS]", "in bias: f16[72]");
  stays("out y", "out y\nout qkv");
  stays("out y", "out y\nout t");
  stays("out y", "out y\nout flat");
  stays("Reshape(t, rows)", "Relu(t)");
  stays("MatMul(flat, out)", "Add(flat, out)");
}

}  // namespace
}  // namespace encore::fuse::tests
