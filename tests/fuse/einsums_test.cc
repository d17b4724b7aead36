#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kScores = R"(in a: f16[n, 4, 3, 8]
in b: f16[n, 4, 5, 8]
y: f16[n, 4, 3, 5] = Einsum(a, b) {equation = "b h i d, b h j d -> b h i j"}  # "scores"
out y
)";

TEST(Einsums, AreProducts) {
  EXPECT_EQ(after("einsums", kScores), R"(in a: f16[n, 4, 3, 8]
in b: f16[n, 4, 5, 8]
"b turned": f16[n, 4, 8, 5] = Transpose(b) {perm = [0, 1, 3, 2]}  # "scores"
y: f16[n, 4, 3, 5] = MatMul(a, "b turned")  # "scores"
out y
)");
  const std::string plain =
      after("einsums", "in a: f32[3, 8]\nin b: f32[8, 5]\ny = Einsum(a, b) {equation = \"ik,kj\"}\nout y\n");
  EXPECT_NE(plain.find("MatMul(a, b)"), plain.npos) << plain;
}

TEST(Einsums, OthersStay) {
  const auto stays = [](const char* equation) {
    expect_stays("einsums", kScores, "b h i d, b h j d -> b h i j", equation);
  };
  for (const char* equation : {"bhid,bhjd->bhji", "bhid,bhjd->bijh", "bhid,bhjd->bhi", "bhid,hbjd->bhij",
                               "...d,...d->...", "bhii,bhji->bhij", "bhid,bhjd->bhd"})
    stays(equation);
  expect_stays("einsums", kScores, "in b: f16[n, 4, 5, 8]", "in b: f16[n, 4, 5, 1]");  // broadcast, and summed up
  expect_stays("einsums", kScores, "in b: f16[n, 4, 5, 8]", "in b: f16[n, 4, 5, d]");
}

}  // namespace
}  // namespace encore::fuse::tests
