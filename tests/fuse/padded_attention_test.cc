// Attention that is one operator, along a sequence that is padded.
#include <gtest/gtest.h>

#include "padded.h"
#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

const std::string kRows = "in q: f32[b, n, 64]\nin k: f32[b, n, 64]\nin v: f32[b, n, 64]\n";
std::string onnxs(const std::string& inputs, const std::string& more = "", const std::string& attributes = "") {
  return kRows + more + "y: f32[b, n, 64] = Attention@23(" + inputs + ") {kv_num_heads = 4, q_num_heads = 4" +
         attributes + "}\nout y\n";
}

TEST(PaddedAttention, KeysGetAMask) {
  EXPECT_EQ(axes_of(onnxs("q, k, v"), "n"), "1 1 1 > 1");
  EXPECT_EQ(axes_of(onnxs("q, k, v"), "b"), "0 0 0 > 0");
  EXPECT_EQ(masks_of(onnxs("q, k, v"), "n"),
            "in \"padding of n\": f32[n]\n"
            "y: f32[b, n, 64] = Attention(q, k, v, \"padding of n\") {kv_num_heads = 4, q_num_heads = 4}\n");
  EXPECT_EQ(axes_of(onnxs("q, k, v", "", ", is_causal = 1"), "n"), "1 1 1 > 1");
}

TEST(PaddedAttention, AMaskOfTheModelsIsJoined) {
  for (const char* shape : {"b, 1, 1, n", "1, n", "1, 1", "n"})
    EXPECT_EQ(axes_of(onnxs("q, k, v, m", std::string("in m: f32[") + shape + "]\n"), "n").substr(0, 6), "1 1 1 ")
        << shape;
  EXPECT_EQ(masks_of(onnxs("q, k, v, m", "in m: f32[b, 1, 1, n]\n"), "n"),
            "in \"padding of n\": f32[n]\n"
            "\"m and padding\": f32[b, 1, 1, n] = Add(m, \"padding of n\")\n"
            "y: f32[b, n, 64] = Attention(q, k, v, \"m and padding\") {kv_num_heads = 4, q_num_heads = 4}\n");
  EXPECT_EQ(masks_of(onnxs("q, k, v, m", "in x: f32[b, 1, 1, n]\nm: bool[b, 1, 1, n] = IsNaN(x)\n"), "n").substr(0, 26),
            "in \"rows of n\": bool[n]\n\"m");
  const std::string square = "in r: f32[b, 1, 1, n]\nt: f32[b, 1, n, 1] = Transpose(r) {perm = [0, 1, 3, 2]}\n";
  EXPECT_EQ(axes_of(onnxs("q, k, v, m", square + "m: f32[b, 1, n, n] = Add(r, t)\n"), "n"), "1 1 1 3 > 1");
  const std::string refused = "Attention node '' has a mask that need not be as long";
  EXPECT_EQ(axes_of(onnxs("q, k, v, m", "in m: f32[m, n]\n"), "n"), refused);
  EXPECT_EQ(axes_of(onnxs("q, k, v, m", "in m: f32[n, m]\n"), "n"), "Attention node '' has a mask of something else");
}

TEST(PaddedAttention, NothingElseGoesAlongASequence) {
  EXPECT_EQ(axes_of(onnxs("q, k, v, _, p, p", "in p: f32[b, 4, 3, 16]\n"), "n"),
            "Attention node '' has a past, or lengths");
  EXPECT_EQ(axes_of(replaced(onnxs("q, k, v"), "in v: f32[b, n, 64]", "in v: f32[b, m, 64]"), "n"),
            "Attention node '' has more keys than values");
  EXPECT_EQ(axes_of(replaced(onnxs("q, k, v"), "q: f32[b, n, 64]", "q: f32[b, m, 64]"), "n"), "-1 1 1 > -1");
  EXPECT_EQ(
      axes_of("in q: f64[b, n, 64]\ny: f64 = Attention@23(q, q, q) {kv_num_heads = 4, q_num_heads = 4}\nout y\n", "n"),
      "Attention node '' sums along it");
}

TEST(PaddedAttention, MicrosoftsOperatorsGetABias) {
  const auto multi_head = [](const std::string& inputs, const std::string& more = "",
                             const std::string& attributes = "") {
    return kRows + more + "y: f32[b, n, 64] = com.microsoft.MultiHeadAttention(" + inputs + ") {num_heads = 4" +
           attributes + "}\nout y\n";
  };
  EXPECT_EQ(axes_of(multi_head("q, k, v"), "n"), "1 1 1 > 1");
  EXPECT_EQ(axes_of(multi_head("q, k, v, _, m", "in m: i32[b, n]\n"), "n"), "1 1 1 1 > 1");
  EXPECT_EQ(axes_of(multi_head("q, k, v, _, m", "in m: i32[b]\n"), "n"), "1 1 1 -1 > 1");
  EXPECT_EQ(masks_of(multi_head("q, k, v, _, m", "in m: i32[b, n]\n"), "n"),
            "in \"padding of n\": f32[n]\n"
            "const \"'s axes\": i64[3] = [0, 1, 2]\n"
            "\"padding of n for scores\": f32[1, 1, 1, n] = Unsqueeze(\"padding of n\", \"'s axes\")\n"
            "y: f32[b, n, 64] = com.microsoft.MultiHeadAttention(q, k, v, _, m, \"padding of n for scores\") "
            "{num_heads = 4}\n");
  const std::string node = "MultiHeadAttention node '' ";
  EXPECT_EQ(axes_of(multi_head("q, k, v, _, m",
                               "in x: i32[b, n, 1]\nt: i32[b, 1, n] = Transpose(x) {perm = [0, 2, 1]}\n"
                               "m: i32[b, n, n] = Add(x, t)\n"),
                    "n"),
            node + "has a mask of queries");
  EXPECT_EQ(axes_of(multi_head("q, k, v, _, m", "in m: i32[b, m]\n"), "n"),
            node + "has a mask that need not be as long");
  EXPECT_EQ(axes_of(multi_head("q, k, v, _, _, m", "in m: f32[1, 4, n, 1]\n"), "n"),
            node + "has a bias of scores, or a past");
  EXPECT_EQ(
      axes_of(replaced(multi_head("q, k, v", "", ", unidirectional = 1"), "q: f32[b, n, 64]", "q: f32[b, m, 64]"), "n"),
      node + "sees more keys before each query");
  const std::string projected =
      "in x: f32[b, n, 64]\nin m: i32[b]\nconst w: f32[64, 192]\nconst a: f32[192]\n"
      "y: f32[b, n, 64] = com.microsoft.Attention(x, w, a, m) {num_heads = 4}\nout y\n";
  EXPECT_EQ(axes_of(projected, "n"), "1 -1 > 1");
  EXPECT_EQ(axes_of(projected, "b"), "0 0 > 0");
}

}  // namespace
}  // namespace encore::fuse::tests
