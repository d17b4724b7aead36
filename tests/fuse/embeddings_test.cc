#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kBert = R"(in words: i64[b, s]
in kinds: i32[b, s]
const table: f16[100, 8]
const of_kinds: f16[2, 8]
const places: f16[1, s, 8]
const gamma: f16[8]
const beta: f16[8]
w: f16[b, s, 8] = Gather(table, words) {axis = 0}  # "first"
k: f16[b, s, 8] = Gather(of_kinds, kinds)
a: f16[b, s, 8] = Add(w, k)
x: f16[b, s, 8] = Add(a, places)
y: f16[b, s, 8] = LayerNormalization(x, gamma, beta) {axis = -1, epsilon = 0.5}  # "norm"
out y
)";

TEST(Embeddings, AreAddedAndNormedAtOnce) {
  EXPECT_EQ(after("embeddings", kBert), R"(in words: i64[b, s]
in kinds: i32[b, s]
const gamma: f16[8]
const beta: f16[8]
const table: f16[100, 8]
const of_kinds: f16[2, 8]
const places: f16[1, s, 8]
y: f16[b, s, 8] = encore.EmbeddingNorm(gamma, beta, table, words, of_kinds, kinds, places, _) {centred = 1, epsilon = 0.5, factors = [1.0, 1.0, 1.0]}  # "first and norm"
out y
)");
}

TEST(Embeddings, AreAddedInTheModelsOrder) {
  const std::string made = after("embeddings", replaced(kBert, "Add(a, places)", "Add(places, a)"));
  EXPECT_NE(made.find("beta, table, words, of_kinds, kinds, places, _)"), made.npos) << made;
}

TEST(Embeddings, OthersReadTheSumToo) {
  const std::string made = after("embeddings", replaced(kBert, "out y", "out y\nout x"));
  EXPECT_NE(made.find("y: f16[b, s, 8], x: f16[b, s, 8] = encore.EmbeddingNorm("), made.npos) << made;
}

// Gemma's.
TEST(Embeddings, MayBeMultipliedByANumber) {
  const std::string made = after("embeddings", R"(in words: i64[b, s]
const table: bf16[100, 8]
const gamma: bf16[8]
const root: bf16[] = 2.828125
w: bf16[b, s, 8] = Gather(table, words)
x: bf16[b, s, 8] = Mul(w, root)
y: bf16[b, s, 8] = RMSNormalization(x, gamma) {epsilon = 0.5}
m: bf16[b, s, 8] = Add(x, y)
out m
)");
  EXPECT_NE(
      made.find("encore.EmbeddingNorm(gamma, _, table, words) {centred = 0, epsilon = 0.5, factors = [2.828125]}"),
      made.npos)
      << made;
}

TEST(Embeddings, MoreSummandsAreAddedBefore) {
  std::string text = replaced(kBert, "in words", "in z: f16[b, s, 8]\nin words");
  text = replaced(text, "Add(w, k)", "Add(z, k)\nc: f16[b, s, 8] = Add(a, w)");
  const std::string made = after("embeddings", replaced(text, "Add(a, places)", "Add(c, places)"));
  EXPECT_NE(made.find("encore.EmbeddingNorm(gamma, beta, a, _, table, words, places, _)"), made.npos) << made;
}

TEST(Embeddings, StayOtherwise) {
  const auto stays = [](const char* part, const char* by) { expect_stays("embeddings", kBert, part, by); };
  stays("out y", "out y\nout a");
  stays("const places: f16[1, s, 8]", "in places: f16[b, 1, 8]");
  stays("const gamma: f16[8]", "const gamma: f32[8]");  // and a bias of another type
  stays("const gamma: f16[8]", "in gamma: f16[8]");
  stays("{axis = -1, epsilon = 0.5}", "{axis = 1, epsilon = 0.5}");
  stays("Gather(table, words) {axis = 0}  # \"first\"\nk: f16[b, s, 8] = Gather(of_kinds, kinds)",
        "Exp(places)\nk: f16[b, s, 8] = Exp(w)");
}

}  // namespace
}  // namespace encore::fuse::tests
